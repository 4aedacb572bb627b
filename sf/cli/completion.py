"""``sf completion bash|zsh``: completion of commands, flags, their values, environments and runs.

It prints a script for the shell. What can follow is written into it, because a command of ours takes half a second to
start, which is too long for a key. So the script is printed again after an update of `sf`; runs alone are looked up.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from sf.cli.command import run_command
from sf.config.fields import alternatives, strip
from sf.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SHELLS = "bash", "zsh"
COMMON = "--help", "--version"
OF_TRAINING = "--config=", "--save_config="
USAGE = (
    "usage: sf completion bash|zsh\n\n"
    "Prints a script for the shell. Keep it in a file that the shell reads when it starts:\n\n"
    "  sf completion bash > ~/.sf-completion && echo 'source ~/.sf-completion' >> ~/.bashrc\n"
    "  sf completion zsh > ~/.sf-completion && echo 'source ~/.sf-completion' >> ~/.zshrc"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run_command(_print, arguments)


def _print(arguments: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in arguments):
        print(USAGE)
        return ExitCode.FINISHED
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        found = " ".join(arguments) if arguments else "nothing"
        raise UsageError(f"One shell is expected, bash or zsh, found {found}.\n{USAGE}")
    print(script(arguments[0]), end="")
    return ExitCode.FINISHED


def script(shell: str) -> str:
    """The script for one of `SHELLS`."""
    from sf import __version__
    from sf.cli.main import COMMANDS

    folder = files("sf.cli") / "shells"
    common = Template((folder / "common.sh").read_text(encoding="utf-8"))
    ours = (folder / f"{shell}.sh").read_text(encoding="utf-8")
    names = [name for name in COMMANDS if name not in ("ls", "doctor", "completion")]
    parts, flags, values, runs = _tables()
    return common.substitute(
        version=__version__,
        shell=shell,
        commands=_words(COMMANDS),
        parts=_cases(parts),
        flags=_cases(flags),
        values=_cases(values),
        takes_runs="|".join(shlex.quote(name) for name in runs),
    ) + ours.replace("@programs@", " ".join(["sf", *(f"sf-{name}" for name in names)]))


def _tables() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]:
    """Words by command: its parts, its flags, the values of each flag; and the commands that take runs."""
    from sf.cli import bench, hub
    from sf.cli.all_commands import commands
    from sf.cli.arguments import flags_of
    from sf.config import Config

    parts = {"hub": hub.COMMANDS, "bench": bench.COMMANDS, "completion": SHELLS}
    configs: dict[str, type[DataclassInstance]] = {command.name: command.config for command in commands()}
    configs |= dict.fromkeys(["train", *(f"bench {name}" for name in bench.COMMANDS)], Config)
    flags: dict[str, Iterable[str]] = {"completion": COMMON[:1]}
    values: dict[str, Iterable[str]] = {"* --env": _environments()}
    for name, config in configs.items():
        own = dict(flags_of(config))
        words = [f"--{flag}" if strip(hint)[0] is bool else f"--{flag}=" for flag, hint in own.items()]
        flags[name] = [*words, *(OF_TRAINING if config is Config else ()), *COMMON]
        values |= {f"{name} --{flag}": found for flag, hint in own.items() if (found := _choices(hint))}
    return parts, flags, values, [command.name for command in commands() if command.takes_runs]


def _choices(hint: Any) -> list[str]:
    """The values of a flag, where they are words."""
    members = [strip(member)[0] for member in alternatives(strip(hint)[0])]
    found: list[str] = []
    for member in members:
        if get_origin(member) is Literal:
            found += get_args(member)
        elif member is bool:
            found += ["True", "False"]
    return found


def _environments() -> list[str]:
    """Ids, and the beginnings of families."""
    from sf.envs.registry import known_ids

    return [name.removesuffix("*") for ids in known_ids().values() for name in ids]


def _cases(table: Mapping[str, Iterable[str]]) -> str:
    """The branches of a ``case``: those with the same words are one; * stays a pattern."""
    together: dict[str, list[str]] = {}
    for key, words in table.items():
        together.setdefault(_words(words), []).append(key)
    cases = [("|".join(map(_pattern, keys)), words) for words, keys in together.items()]
    return "\n".join(f"    {pattern}) printf '%s\\n' {words} ;;" for pattern, words in cases)


def _pattern(key: str) -> str:
    return f"*{shlex.quote(key[1:])}" if key.startswith("*") else shlex.quote(key)


def _words(words: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, words))


if __name__ == "__main__":
    sys.exit(main())
