"""The completion scripts for shells. They are click's scripts, with these corrections:

- Bash splits words at colons, which ids and positions contain. The script requests completions for the whole line,
  and returns only the part of each completion after the last colon of the word.
- In fish, a description may contain commas.
- In fish and zsh, `--option=value` is one word. Only the value is completed, and the part up to `=` stays.
- Shells complete files and directories themselves.
"""

import os
from collections.abc import Sequence
from typing import Any, Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

_KINDS: Final = {"FILE": "file", "DIR": "dir"}

_BASH: Final = r"""
%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} completion type value
    local word=${line##*[[:space:]=]} before=""
    if [[ $COMP_WORDBREAKS == *:* && $word == *:* ]]; then
        before=${word%%:*}:
    fi
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$before"}") ;;
        esac
    done < <(env COMP_WORDS="$line" %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_FISH: Final = """
function %(complete_func)s
    set -lx COMP_WORDS (commandline -cp)
    set -lx COMP_CWORD (commandline -t)
    set -l before (string match -r -- "^--[^=]*=" $COMP_CWORD)
    set -l begun (string replace -r -- "^--[^=]*=" "" $COMP_CWORD)
    for completion in (env %(complete_var)s=fish_complete %(prog_name)s)
        set -l parts (string split --max 1 "," $completion)
        switch $parts[1]
            case dir
                for value in (__fish_complete_directories "$begun")
                    echo "$before$value"
                end
            case file
                for value in (__fish_complete_path "$begun")
                    echo "$before$value"
                end
            case plain
                echo "$before$parts[2]"
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""

_ANSWERS: Final = "    for type key descr in "
_ZSH: Final = (
    ZshComplete.source_template.replace(  # The rest of click's script already completes file names.
        _ANSWERS, f"    [[ $PREFIX == --*=* ]] && compset -P '*='\n{_ANSWERS}"
    )
)


def add_shells() -> None:
    for shell in (_Bash, _Fish, _Zsh):
        add_completion_class(shell)


class _WithFiles(ShellComplete):
    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        option, equals, value = incomplete.partition("=")
        words, begun = ([*args, option], value) if equals else (args, incomplete)
        if kind := _KINDS.get(_metavar_of_last(self.cli, words)):
            return [CompletionItem(begun, type=kind)]
        return super().get_completions(args, incomplete)


class _Bash(_WithFiles, BashComplete):
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() else words.pop() if words else ""
        return words[1:], incomplete


class _Fish(_WithFiles, FishComplete):
    source_template = _FISH


class _Zsh(_WithFiles, ZshComplete):
    source_template = _ZSH

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Returns completions that replace the whole word typed so far."""
        found = super().get_completions(args, incomplete)
        option, equals, _ = incomplete.partition("=")
        if equals and option.startswith("--"):
            for each in found:
                each.value = f"{option}={each.value}"
        return found


def _metavar_of_last(root: click.Command, words: Sequence[str]) -> str:
    """Returns the metavar of the option that still lacks its value; empty if no option does."""
    command = root
    for word in words:
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word) or command
    last = words[-1] if words else ""
    options = (each for each in command.params if last in each.opts)
    return next((str(each.metavar or "") for each in options if not _is_flag(each)), "")


def _is_flag(parameter: Any) -> bool:
    return not isinstance(parameter, click.Option) or parameter.is_flag
