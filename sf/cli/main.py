"""``sf COMMAND``: all commands below one name, the same as ``sf-COMMAND``."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

from sf.cli.command import run_command
from sf.errors import ExitCode, UsageError

COMMANDS = {
    "train": ("sf.cli.train", "train a policy"),
    "ls": ("sf.cli.runs", "the runs of a directory, and removing them"),
    "eval": ("sf.cli.evaluate", "play episodes with saved policies and say what they reached"),
    "enjoy": ("sf.cli.enjoy", "watch a policy, in a window or as a film"),
    "report": ("sf.cli.report", "a page about runs"),
    "sweep": ("sf.cli.sweep", "search for better flags"),
    "plan": ("sf.cli.plan", "train by an execution plan"),
    "export": ("sf.cli.export", "write a policy for another runtime"),
    "track": ("sf.cli.track", "send the curves of a run to a tracker"),
    "hub": ("sf.cli.hub", "publish a run, and take over a published one"),
    "doctor": ("sf.cli.doctor", "look at this machine and this installation"),
    "bench": ("sf.cli.bench", "measure this machine"),
    "completion": ("sf.cli.completion", "completion for bash and zsh"),
}

OURS = {
    "list": "ls",
    "runs": "ls",
    "evaluate": "eval",
    "play": "enjoy",
    "watch": "enjoy",
    "plot": "report",
    "tune": "sweep",
}
"""Commands of other programs to ours."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        module = importlib.import_module(COMMANDS[words[0]][0])
        code: int = module.main(words[1:])
        return code
    return run_command(_tell, words)


def _tell(words: Sequence[str]) -> int:
    """What there is."""
    lines = [f"  sf {name:<11}{what}" for name, (_, what) in COMMANDS.items()]
    usage = "\n".join(["usage: sf COMMAND [--flag=value ...]", "", *lines, "", "Flags: sf COMMAND --help"])
    if words and words[0] not in ("-h", "--help"):
        near = OURS.get(words[0]) or next(iter(difflib.get_close_matches(words[0], COMMANDS, 1)), "")
        raise UsageError(f"There is no command {words[0]!r}.{near and f' Did you mean sf {near}?'}\n{usage}")
    print(usage)
    return ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
