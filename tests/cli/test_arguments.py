"""Command lines: what is understood, and the sentence for everything that is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from sf.cli.arguments import parse
from sf.cli.command import run_command
from sf.cli.train import main
from sf.config import Config
from sf.config.fields import typed_fields
from sf.errors import (
    CheckpointError,
    ConfigError,
    EnvError,
    ExitCode,
    ExperimentError,
    InternalError,
    ResourceError,
    UsageError,
    WorkerCrashed,
)
from tests.helpers.bad_lines import BAD_LINES, is_answered

FLAGS = [name for role in typed_fields(Config).values() for name in typed_fields(role)]


def parse_train(*arguments: str) -> Config:
    return parse(Config, arguments, prog="sf-train", description="Train.", required="--env=CartPole-v1")


def problems(*arguments: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        parse_train(*arguments)
    return str(caught.value).split("\n")


class TestUnderstood:
    def test_s6_values_follow_an_equals_sign_or_a_space(self) -> None:
        config = parse_train("--env=CartPole-v1", "--seed", "3", "--num-workers=2", "--stop_at_reward", "-250")
        assert (config.run.env, config.run.seed, config.rollout.num_workers) == ("CartPole-v1", 3, 2)
        assert config.run.stop_at_reward == -250.0

    def test_s6_booleans_are_written_as_text(self) -> None:
        config = parse_train("--env=x", "--async_rl=False", "--serial_mode", "True")
        assert config.run.serial_mode
        assert not config.run.async_rl

    def test_s6_flags_of_zero_lag_a2c(self) -> None:
        line = (
            "--env=CartPole-v1 --async_rl=False --num_epochs=1 --num_batches_per_epoch=1 --num_workers=2 "
            "--num_envs_per_worker=4 --rollout=32 --batch_size=256"
        )
        learner = parse_train(*line.split()).learner
        assert (learner.num_epochs, learner.num_batches_per_epoch, learner.batch_size) == (1, 1, 256)

    def test_several_values_and_none(self) -> None:
        model = parse_train("--env=x", "--encoder_mlp_layers", "32", "16", "--encoder_conv_mlp_layers=7").model
        assert (model.encoder_mlp_layers, model.encoder_conv_mlp_layers) == ((32, 16), (7,))
        assert parse_train("--env=x", "--num_workers=None").rollout.num_workers is None
        assert parse_train("--env=x", "--encoder_mlp_layers").model.encoder_mlp_layers == ()

    def test_every_field_is_a_flag_of_its_own(self) -> None:
        assert len(FLAGS) == len(set(FLAGS))


class TestRefused:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("--evn=x", "Unknown flag --evn. Did you mean --env?"),
            ("--env=x --num_work=3", "Unknown flag --num_work. Did you mean --num_workers?"),
            ("--env=x --lr=3", "Unknown flag --lr. It is called --learning_rate here."),
            ("--env=x --quux", "Unknown flag --quux. See --help for all flags."),
            ("--seed=3", "--env is missing. Give it like --env=CartPole-v1."),
            ("", "--env is missing. Give it like --env=CartPole-v1."),
            (
                "CartPole-v1",
                "Unexpected argument 'CartPole-v1'. Flags are written --name=value, such as --env=CartPole-v1.",
            ),
            ("-e", "Unexpected argument '-e'. Flags are written --name=value."),
            ("--env", "--env needs a value: a text."),
            ("--env=x --seed", "--seed needs a value: an integer or None."),
            ("--env=x y", "--env takes one value, found 2: x y. Put quotes around text with spaces."),
            ("--env=x --seed 3 --seed=4", "--seed is given twice (3 and 4). Give it once."),
            ("--env=x --num-workers=3 --num_workers=4", "--num_workers is given twice (3 and 4). Give it once."),
            ("--env=x --num_workers=a", "--num_workers=a must be an integer or None."),
            ("--env=x --num_workers=", "--num_workers= must be an integer or None."),
            ("--env=x --rollout=2.5", "--rollout=2.5 must be an integer or None."),
            ("--env=x --train_for_env_steps=1.5", "--train_for_env_steps=1.5 must be an integer or None."),
            ("--env=x --train_for_env_steps=1e400", "--train_for_env_steps=1e400 must be an integer or None."),
            ("--env=x --gamma=high", "--gamma=high must be a number."),
            ("--env=x --async_rl=no", "--async_rl=no must be True or False."),
            ("--env=x --device=tpu", "--device=tpu must be cpu or gpu."),
            ("--env=x --encoder_mlp_layers 64 b", "--encoder_mlp_layers=b must be an integer."),
            ("--env=x --stop_at_reward=best", "--stop_at_reward=best must be a number or None."),
            (
                "--env=x --encoder_mlp_layers=[64,32]",
                "--encoder_mlp_layers=[64,32] must be an integer. Write --encoder_mlp_layers 64 32.",
            ),
        ],
    )
    def test_fault_g1_bad_line_has_its_sentence(self, line: str, message: str) -> None:
        assert problems(*line.split()) == [message]

    def test_fault_g1_everything_wrong_is_told_at_once(self) -> None:
        assert len(problems("--evn=x", "--seed=a", "--gamma")) == 3

    def test_fault_g1_typos_get_the_right_suggestion(self) -> None:
        """One letter left out, doubled or exchanged with the next one, in every flag."""
        typos = []
        for flag in FLAGS:
            for i in range(1, len(flag) - 1):
                typos += [
                    (flag[:i] + flag[i + 1 :], flag),
                    (flag[:i] + flag[i] + flag[i:], flag),
                    (flag[:i] + flag[i + 1] + flag[i] + flag[i + 2 :], flag),
                ]
        typos = [(typo, flag) for typo, flag in typos if typo not in FLAGS]
        sample = typos[::23]
        assert len(sample) > 200
        right = sum(problems("--env=x", f"--{typo}=1")[0].endswith(f"--{flag}?") for typo, flag in sample)
        assert right / len(sample) >= 0.95


class TestHelp:
    def test_a27_help_shows_flags_in_groups_with_defaults(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            parse_train("--help")
        assert caught.value.code == 0
        shown = capsys.readouterr().out
        for group in ("run options", "rollout options", "inference options", "model options", "learner options"):
            assert group in shown
        for flag in FLAGS:
            assert f"--{flag} " in shown
        assert " ".join(shown.replace("│", " ").split()).count("(default:") == len(FLAGS) - 1  # --env has none


class TestCommand:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (UsageError("x"), 2),
            (ConfigError(["x"]), 2),
            (EnvError("x"), 3),
            (CheckpointError("x"), 4),
            (ExperimentError("x"), 4),
            (ResourceError("x"), 5),
            (WorkerCrashed("x"), 7),
        ],
    )
    def test_error_becomes_a_message_and_its_exit_code(
        self, error: Exception, code: int, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_command(raising(error), []) == code
        assert capsys.readouterr().err == f"{type(error).__name__}: x\n"

    @pytest.mark.parametrize("error", [InternalError("slot 3 is lost"), ZeroDivisionError("slot 3 is lost")])
    def test_fault_of_ours_shows_its_traceback(self, error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_command(raising(error), []) == ExitCode.INTERNAL
        shown = capsys.readouterr().err
        assert "Traceback" in shown
        assert "slot 3 is lost" in shown

    def test_interrupt_before_a_run_gives_130(self) -> None:
        assert run_command(raising(KeyboardInterrupt()), []) == 130

    @pytest.mark.parametrize("line", ["print('seen')", "print('seen' * 100_000)", "print('seen', flush=True)"])
    def test_reader_that_has_gone_ends_a_command_quietly(self, line: str) -> None:
        """Whether the text is refused while the command runs or when it is flushed at the end."""
        text = f"from sf.cli.command import run_command; exit(run_command(lambda _: {line} or 0, []))"
        reader, writer = os.pipe()
        os.close(reader)
        ended = subprocess.run([sys.executable, "-c", text], stdout=writer, stderr=subprocess.PIPE, text=True)
        os.close(writer)
        assert (ended.returncode, ended.stderr) == (ExitCode.SIGPIPE, "")

    def test_reader_of_errors_that_has_gone_ends_a_command_quietly(self) -> None:
        text = "from sf.cli.command import run_command; exit(run_command(lambda _: 1 / 0, []))"
        reader, writer = os.pipe()
        os.close(reader)
        ended = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=writer)
        os.close(writer)
        assert (ended.returncode, ended.stdout) == (ExitCode.SIGPIPE, b"")

    def test_other_broken_pipe_is_a_fault(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_command(raising(BrokenPipeError("of a worker")), []) == ExitCode.INTERNAL
        assert "of a worker" in capsys.readouterr().err

    def test_config_error_survives_pickling(self) -> None:
        import pickle

        assert pickle.loads(pickle.dumps(ConfigError(["a", "b"]))).problems == ("a", "b")


@dataclass
class Outcome:
    code: int
    err: str
    seconds: float
    heavy: list[str]


def command(tmp_path: Path, *arguments: str) -> Outcome:
    """The whole command in a fresh interpreter, which tells at its end what it has imported."""
    code = (
        "import sys; from sf.cli.train import main; code = main(sys.argv[1:]); "
        "print([m for m in ('torch', 'gymnasium') if m in sys.modules]); sys.exit(code)"
    )
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    seconds, last = time.monotonic() - start, done.stdout.splitlines()[-1:]  # a busy machine is told before
    return Outcome(done.returncode, done.stderr, seconds, last)


class TestWholeCommand:
    @pytest.mark.alone
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("--evn=x", "UsageError: Unknown flag --evn. Did you mean --env?\n"),
            ("--env=x --gamma=2", "ConfigError: gamma=2.0 must be at least 0 and at most 1.\n"),
        ],
    )
    def test_fault_g1_usage_error_is_fast_and_leaves_nothing(self, tmp_path: Path, line: str, message: str) -> None:
        done = command(tmp_path, *line.split())
        assert (done.code, done.err) == (2, message)
        assert done.heavy == ["[]"]
        assert list(tmp_path.iterdir()) == []
        assert done.seconds < 2.0  # about 0.25 s on an idle machine

    @pytest.mark.parametrize(
        ("line", "code", "sentence"), BAD_LINES, ids=[" ".join(line)[-50:] for line, _, _ in BAD_LINES]
    )
    def test_fault_g1_table_of_bad_lines(
        self,
        line: list[str],
        code: int,
        sentence: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """`make chaos` runs each as a command of its own and measures how long it takes."""
        monkeypatch.setattr("sf.cli.train.may_have_processes", lambda _: False)  # would load for nothing
        monkeypatch.chdir(tmp_path)
        assert main(line) == code
        assert is_answered(sentence, capsys.readouterr().err)
        assert list(tmp_path.iterdir()) == []

    def test_fault_g1_table_has_a_hundred_lines(self) -> None:
        assert len(BAD_LINES) >= 100

    def test_fault_g2_unknown_environment_is_refused_before_any_directory(self, tmp_path: Path) -> None:
        done = command(tmp_path, "--env=CartPol-v1")
        assert done.code == 3
        assert done.err.startswith("EnvError: There is no environment 'CartPol-v1'. Did you mean CartPole-v1 or")
        assert done.heavy == ["['gymnasium']"]
        assert list(tmp_path.iterdir()) == []


def test_help_whose_reader_has_gone_ends_without_a_word() -> None:
    line = [sys.executable, "-m", "sf.cli.train", "--help"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (128 + signal.SIGPIPE, "")


def raising(error: BaseException) -> Callable[[Sequence[str]], int]:
    def command(_: Sequence[str]) -> int:
        raise error

    return command
