"""The way to the Hugging Face Hub and back, with one sentence for each thing that can go wrong."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from sf.errors import ResourceError, UsageError, sentence
from sf.tools.hub.folder import FILM, expect_published

NETWORK = {"huggingface_hub", "hf_xet", "requests", "urllib3", "httpx", "httpx2", "httpcore", "httpcore2"}
"""Packages whose exceptions say that an exchange with the server has failed; which are used depends on the version."""
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
LOG_IN = "Log in with `hf auth login`, or set HF_TOKEN"
FORBIDDEN = 401, 403


def expect_installed() -> None:
    """Refuses to go on without the client.

    Raises:
        UsageError: with the command that installs it.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise UsageError('The package huggingface_hub is missing: pip install "sf-rl[hub]"')


def expect_repository(repo: str) -> None:
    """Refuses what cannot be the name of a repository.

    Raises:
        UsageError: it is not of the form user/name.
    """
    if not REPOSITORY.fullmatch(repo):
        raise UsageError(f"--repo={repo} is not the name of a repository. Write it like --repo=user/name.")


def expect_access(repo: str) -> None:
    """Refuses a push that cannot end well, before an evaluation takes its time.

    Raises:
        UsageError: there is no token, or it is not valid.
        ResourceError: the Hub cannot be reached or answers with an error.
    """
    from huggingface_hub import HfApi

    with _errors_told(repo):
        HfApi().whoami()


def send(folder: Path, repo: str, private: bool) -> str:
    """Makes the repository if there is none, and replaces the run in it by this folder; returns the address.

    Raises:
        UsageError: the token may not do that.
        ResourceError: the Hub cannot be reached or answers with an error.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with _errors_told(repo):
        url = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo, folder_path=folder, commit_message="A run of sf", delete_patterns=["checkpoint_p*", FILM]
        )
    return str(url)


def fetch(repo: str, folder: Path) -> None:
    """Downloads the files of a published run that a pull takes.

    Raises:
        UsageError: there is no such repository, or the token may not see it.
        CheckpointError: it holds something else.
        ResourceError: the Hub cannot be reached or answers with an error.
    """
    from huggingface_hub import HfApi, snapshot_download

    with _errors_told(repo):
        info = HfApi().model_info(repo)
        names = [file.rfilename for file in info.siblings or ()]
    wanted = expect_published(names, repo)
    with _errors_told(repo):
        snapshot_download(repo, revision=info.sha, local_dir=folder, allow_patterns=wanted)


@contextlib.contextmanager
def _errors_told(repo: str) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise UsageError(f"--repo={repo} cannot be the name of a repository: {_first_line(error)}") from None
    except errors.LocalTokenNotFoundError:
        raise UsageError(f"There is no token for the Hub. {LOG_IN} to one that may write.") from None
    except errors.GatedRepoError:
        raise UsageError(f"Access to {repo} has to be asked for on its page at the Hub.") from None
    except errors.RepositoryNotFoundError:
        raise UsageError(
            f"There is no repository {repo} that this token may see. Look at the name; if it is private: {LOG_IN}."
        ) from None
    except errors.OfflineModeIsEnabled:
        raise UsageError("HF_HUB_OFFLINE=1 forbids every exchange with the Hub. Unset it.") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in FORBIDDEN:
            raise UsageError(f"The token may not do this in {repo} ({status}). {LOG_IN} to one that may.") from None
        raise ResourceError(f"The Hub answers with an error: {_first_line(error)} Try again later.") from None
    except Exception as error:
        if not any(kind.__module__.partition(".")[0] in NETWORK for kind in type(error).__mro__):
            raise
        raise ResourceError(
            f"The Hub cannot be reached: {_first_line(error)} Look at the network and at HF_ENDPOINT, or use "
            "sf-hub push --output=DIR, which needs none."
        ) from None


def _first_line(error: Exception) -> str:
    return sentence((str(error).strip() or type(error).__name__).splitlines()[0])
