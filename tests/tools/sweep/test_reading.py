"""The file of a sweep: everything that is wrong in it is told at once, with its line, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf.cli.sweep import checked, main
from sf.errors import ConfigError, ExitCode, UsageError
from sf.tools.sweep.description import Span
from sf.tools.sweep.reading import read_description

GOOD = """
sweep = "cartpole"
seeds = [1, 2]
time_limit_s = 60

[flags]
env = "CartPole-v1"
serial_mode = true

[values]
encoder_mlp_layers = [[64, 64], [32]]
reward_clip = ["None", 1.0]

[ranges]
learning_rate = { low = 1e-4, high = 1e-2, log = true }
[ranges.num_epochs]
low = 1
high = 8
integer = true
"""


def problems_of(path: Path, text: str) -> list[str]:
    """The sentences to a file, without its name."""
    file = path / "sweep.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_description(file, checked)
    return [problem.removeprefix(str(file)) for problem in raised.value.problems]


@pytest.mark.more
def test_good_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(GOOD)
    description = read_description(tmp_path / "sweep.toml", checked)
    assert description.settings.sweep == "cartpole"
    assert description.settings.seeds == (1, 2)
    assert description.settings.time_limit_s == 60.0
    assert description.flags == {"env": "CartPole-v1", "serial_mode": True}
    assert description.varied == ["encoder_mlp_layers", "reward_clip", "learning_rate", "num_epochs"]
    assert description.ranges["learning_rate"] == Span(1e-4, 1e-2, log=True)
    assert description.ranges["num_epochs"] == Span(1, 8, integer=True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[values]\nnum_epoch = [1]", ", line 5: Unknown flag --num_epoch. Did you mean --num_epochs?"),
        ("lerning_rate = 1e-3", ", line 4: Unknown flag --lerning_rate. Did you mean --learning_rate?"),
        ('[values]\nnum_epochs = [1, "two"]', ", line 5: --num_epochs=two must be an integer or None."),
        ("[values]\ngamma = [0.9, 1.5]", ", line 5: gamma=1.5 must be at least 0 and at most 1."),
        ("[values]\ngamma = []", ", line 5: gamma must be a list of values to try, found []."),
        ("[values]\nnum_epochs = [1, 2, 1]", ", line 5: num_epochs has 1 twice. Give each value once."),
        ("[values]\ngamma = 0.9", ", line 5: gamma must be a list of values to try, found 0.9."),
        ("seed = 1", ", line 4: seed cannot be in [flags]. Give seeds = [1, 2] at the top of the file."),
        ("gamma = 0.9\n[values]\ngamma = [0.9]", ", line 6: gamma is in [flags] and in [values]. Give it once."),
        ("[ranges]\ngamma = 0.9", ", line 5: gamma must be a range like { low = 1, high = 8 }, found 0.9."),
        ("[ranges]\ngamma = { low = 0.9 }", ", line 5: gamma: high is missing."),
        ("[ranges]\ngamma = { low = 1, high = 0.9 }", ", line 5: gamma: low=1 must be below high=0.9."),
        (
            "[ranges]\ngamma = { low = 0, high = 1, log = true }",
            ", line 5: gamma: low=0 must be above 0 with log = true.",
        ),
        (
            "[ranges]\nrollout = { low = 8.5, high = 64, integer = true }",
            ", line 5: rollout: low and high must be whole numbers with integer = true.",
        ),
        (
            "[ranges]\nrollout = { low = 8, high = 64 }",
            ", line 5: rollout takes whole numbers. Add integer = true to its range.",
        ),
        ("[ranges.gamma]\nlow = 0.5\nhigh = 1.5", ", line 4: gamma=1.5 must be at least 0 and at most 1."),
    ],
)
def test_wrong_flag_is_told_with_its_line(line: str, expected: str, tmp_path: Path) -> None:
    text = f'sweep = "x"\n[flags]\nenv = "CartPole-v1"\n{line}\n'
    assert problems_of(tmp_path, text) == [expected]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("trails = 4", ", line 1: trails is unknown. Did you mean trials?"),
        ("trials = 0", ", line 1: trials=0 must be at least 1."),
        ('trials = "many"', ", line 1: trials must be an integer, found 'many'."),
        ("seeds = []", ", line 1: seeds is empty. Give one seed at least, like seeds = [1]."),
        ("seeds = [1, 1]", ", line 1: seeds=[1, 1] has a seed twice. Give each seed once."),
        ("seed = 1", ", line 1: seed is a flag of sf-train. Give seeds = [1, 2] at the top of the file."),
        ("gamma = 0.9", ", line 1: gamma is a flag of sf-train. Move it below [flags]."),
        (
            'objective = "return"',
            ", line 1: objective='return' must be reward, frames, wall_time_s, or a scalar like eval/reward.",
        ),
        (
            'objective = "eval/rewrd"',
            ", line 1: objective='eval/rewrd' is no curve of a run. Did you mean eval/reward?",
        ),
        (
            'objective = "eval/reward_std"',
            ", line 1: objective='eval/reward_std' needs evaluations. Give eval_every_steps in [flags].",
        ),
        ("values = 3", ", line 1: values must be a table: write [values] and the keys below it."),
        (
            'train_dir = ""',
            ", line 1: train_dir='' must be a path, for example --train_dir=train_dir.",
        ),
    ],
)
def test_wrong_key_is_told_with_its_line(line: str, expected: str, tmp_path: Path) -> None:
    assert problems_of(tmp_path, f'{line}\nsweep = "x"\n[flags]\nenv = "CartPole-v1"\n') == [expected]


@pytest.mark.parametrize(
    "objective", ["env/anything", "user/x", "train/loss_of_mine", "agents/1/reward", "lag/acting", "len/len", "frames"]
)
def test_objectives_that_a_run_may_have(objective: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(f'sweep = "x"\nobjective = "{objective}"\n[flags]\nenv = "CartPole-v1"\n')
    assert read_description(tmp_path / "sweep.toml", checked).settings.objective == objective


def test_everything_is_told_at_once(tmp_path: Path) -> None:
    text = 'sweep = "a b"\n[flags]\nenv = "CartPole-v1"\n[values]\nrnn_type = ["gru", "lsmt", "elman"]\ngamma = [2]\n'
    problems = sorted(problems_of(tmp_path, text))
    assert problems[0].startswith(", line 1: experiment='a b' cannot name a directory")
    assert problems[1:] == [
        ", line 5: --rnn_type=elman must be gru or lstm.",
        ", line 5: --rnn_type=lsmt must be gru or lstm.",
        ", line 6: gamma=2.0 must be at least 0 and at most 1.",
    ]


def test_mistakes_of_form_flags_and_settings_are_told_together(tmp_path: Path) -> None:
    text = """trials = 0
sweep = "x"
[flags]
env = "CartPole-v1"
experiment = "y"
num_epoch = 3
batch_size = -5
algorithm = "appo"
algorithm_kwargs = { epsilonn = 3 }
[values]
rollout = 16
[ranges]
learning_rate = { low = 1, high = 0.1 }
"""
    problems = problems_of(tmp_path, text)
    lines = [problem.partition(":")[0] for problem in problems]
    assert lines == [f", line {number}" for number in (1, 5, 11, 13, 6, 7, 9)], problems
    assert "got an unexpected keyword argument 'epsilonn'" in problems[-1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('algorithm = "appo"\nalgorithm_kwargs = "{bad"\n', ["line 5: algorithm_kwargs='{bad' is not"]),
        ("[ranges]\nbatch_size = { low = 1, high = inf, integer = true }\n", ["line 5: batch_size: high=inf"]),
        (
            "[ranges]\nnum_epoch = { low = 3, hig = 4 }\n",
            ["hig is unknown", "high is missing", "Unknown flag"],
        ),
        ('gamma = 3\n[values]\nenv = "E"\n', ["line 6: env is in", "line 6: env must be a list"]),
        ('algoritm = "dqn"\nexploration = "epsilon_greedy"\n', ["line 4: Unknown flag --algoritm."]),
        ('"num epoch" = 3\ngamma = 3\n', ["Unknown flag --num epoch.", "line 5: gamma=3.0"]),
        ('save_config = "here.toml"\ngamma = 3\n', ["line 4: save_config cannot be in [flags].", "line 5: gamma=3.0"]),
        ("batch_sice = 3\n[slurm]\n", ["line 4: Unknown flag --batch_sice."]),
        ("[values]\nrollout = 16\ngamma = [0.9, 3]\n", ["line 5: rollout must be a list", "line 6: gamma=3.0"]),
    ],
)
@pytest.mark.parametrize("first", ['sweep = "x"', "trials = 1"])
def test_no_mistake_causes_or_hides_another_one(tmp_path: Path, text: str, told: list[str], first: str) -> None:
    problems = problems_of(tmp_path, f'{first}\n[flags]\nenv = "E"\n{text}')
    told = told if first.startswith("sweep") else ["sweep is missing", *told]
    assert len(problems) == len(told), problems
    for problem, expected in zip(problems, told, strict=True):
        assert expected in problem


def test_values_that_contradict_each_other_are_found(tmp_path: Path) -> None:
    values = "num_envs_per_worker = [4, 6]\nworker_num_splits = [2, 4]"
    (problem,) = problems_of(tmp_path, f'sweep = "x"\n[flags]\nenv = "CartPole-v1"\n[values]\n{values}\n')
    assert "num_envs_per_worker=6 cannot form worker_num_splits=4 equal groups" in problem


def test_file_without_an_environment(tmp_path: Path) -> None:
    assert problems_of(tmp_path, 'sweep = "x"\n') == [
        ': env is missing. Give it like env = "CartPole-v1" below [flags].'
    ]


def test_file_that_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text('sweep = "x"\n[flags\n')
    with pytest.raises(UsageError, match=r"sweep.toml is not TOML: .*line 2"):
        read_description(tmp_path / "sweep.toml", checked)
    (tmp_path / "sweep.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not TOML"):
        read_description(tmp_path / "sweep.toml", checked)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "The file of the sweep is missing. Give it first"),
        (["--show"], "The file of the sweep is missing. Give it first"),
        (["none.toml"], "none.toml cannot be read: No such file or directory. Give a file like examples/sweep.toml."),
        (["none.toml", "--serch=tpe"], "Unknown flag --serch. Did you mean --search?"),
        (["none.toml", "--backend=slrm"], "--backend=slrm must be local or slurm or ray."),
    ],
)
def test_wrong_command_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.more
def test_grid_of_a_range_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep.toml").write_text(f'train_dir = "{tmp_path}"\n{GOOD}')
    assert main([str(tmp_path / "sweep.toml"), "--search=grid"]) == ExitCode.USAGE
    assert "A grid cannot try every value of the range of learning_rate." in capsys.readouterr().err
