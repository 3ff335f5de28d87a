"""Values in shell commands: filled in as shell variables, and checked if something may read them as commands.

A value that the shell expands is never parsed by that shell. It can still reach a second reader, such as `sh -c`,
`trap` or `sed`. No pattern finds every way there, so a command that names a reader anywhere takes only harmless values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

LookUp: TypeAlias = Callable[[str], tuple[str, str]]
"""Returns the value of a key, `goal` being the goal, and who wrote it, if that is not the author of the graph.

Raises:
    KeyError: the key is not allowed, or is not set.
"""

SHELLS = "sh ash bash dash zsh ksh mksh csh tcsh yash fish elvish xonsh nu pwsh powershell busybox shell SHELL BASH"
BUILTINS = "eval trap source alias declare typeset unset mapfile readarray compgen fc"
RUNNERS = (
    "env xargs script ssh scp rsync rsh mosh su sudo doas runuser sg pkexec parallel watch entr flock expect tmux "
    "screen make gmake crontab"
)
EDITORS = (
    "awk gawk mawk nawk sed gsed ed ex vi vim nvim emacs m4 dc gdb tclsh wish osascript psql mysql mariadb sqlite3"
)
READERS = " ".join((SHELLS, BUILTINS, RUNNERS, EDITORS))
"""Programs and builtins that run text as commands, or pass it to a program that does."""
FIRST_WORDS = r"\. at batch let just"
"""Readers that are ordinary words too, and count only where a command begins."""
OPTIONS = "exec execdir ok okdir command to-command checkpoint-action eval shell rsh"
"""Options that take a command, after one or two hyphens."""
LANGUAGES = "python pypy perl ruby node deno bun php lua julia Rscript"
"""Programs that are readers unless a file or a module follows them directly: `python report.py`."""
QUOTING_LANGUAGES = "perl ruby"
"""Languages in which even harmless characters can form a command (`qx/date/`, `%x/date/`)."""

HARMLESS = re.compile(r"[\w .,:/@%+=-]*")
WORD = re.compile(r"\w*")
_SIGNS = {HARMLESS: "letters, digits, spaces and _ - . , : / @ % + =", WORD: "letters, digits and _"}


def _any_of(names: str) -> str:
    return f"(?:{'|'.join(names.split())})"


_BEFORE, _AFTER = r"(?<![\w.-])", r"(?![\w-]|[./]\w)"
_KEYWORD = r"\b(?:then|do|else|elif|if|while|until|time|command|builtin|exec)[ \t]"
_COMMAND_END = rf"(?:\A|[;|&\n]|{_KEYWORD})"
_COMMAND_START = rf"(?:{_COMMAND_END}|[(){{}}`!])[ \t]*(?:\w+=\S*[ \t]+)*"
_SIGN = r"\[\[|\$\[|\(\("
"""Signs around arithmetic, in which some shells run commands that a variable contains."""
_CODE = (
    r"[\d.]*"
    + _AFTER
    + r"(?![ \t]+(?:-[uBIsSEO]+[ \t]+)*(?:-m[ \t]+)?(?!/dev/|/proc/)[A-Za-z_./][\w./+-]*(?:[\s;&|)]|\Z))"
)
_READER = re.compile(
    rf"{_BEFORE}({_any_of(READERS)}){_AFTER}|{_BEFORE}({_any_of(LANGUAGES)}){_CODE}"
    rf"|{_COMMAND_START}({_any_of(FIRST_WORDS)})(?=[ \t])|{_COMMAND_END}[ \t]*(\$\{{?\w+)"
    rf"|(?<![\w-])(--?{_any_of(OPTIONS)}){_AFTER}|({_SIGN})"
)
_QUOTING = re.compile(rf"{_BEFORE}({_any_of(QUOTING_LANGUAGES)}){_CODE}")
_QUOTES = re.compile(r"\\\n|['\"\\]")

_PLACE = r"\$goal\b|\$\{(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)\}"
_PLACEHOLDER = re.compile(_PLACE)
_TOKEN = re.compile(
    _PLACE
    + r"|(?<!<)<<(?P<tabs>-?)[ \t]*(?P<end>\\?[\w.+-]+|'[^'\n]*'|\"[^\"\n]*\")|\\[\s\S]|\$\(|[()'\"\n]|(?<!\S)#[^\n]*"
)
"""Placeholders, and all characters that change how a shell reads the text after them."""
_BODY_TOKEN = re.compile(rf"\\[\s\S]|{_PLACE}")
_NESTED = re.compile(r"`|\$\(|\$\[|\$\{[^}]*\$")
"""Expansions in a here-document in which a value would be more than text."""
_QUOTED = {"'": "'\"${%s}\"'", '"': "${%s}"}
"""Reference to a shell variable inside quotes, by the kind of quote."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Something that reads text as commands, with the values that are harmless there."""

    name: str
    allowed: re.Pattern[str] = HARMLESS

    def limit(self, token: str) -> str:
        """Characters to which the value of a placeholder is limited, with the reason."""
        return f"{_limit(token, self.allowed)}, because {self.name} reads text as commands"


def find_reader(command: str) -> Reader | None:
    """Find what reads text as commands in a command, even in quotes; None if nothing known does."""
    plain = _PLACEHOLDER.sub("0", _QUOTES.sub("", command))
    if match := _QUOTING.search(plain):
        return Reader(match[1], WORD)
    match = _READER.search(plain)
    return Reader(next(filter(None, match.groups()))) if match else None


def placeholders(command: str) -> Iterator[tuple[str, str]]:
    """Yield each placeholder of a command with its key."""
    for match in _PLACEHOLDER.finditer(command):
        yield match[0], match["key"] or "goal"


def fill_in(command: str, look_up: LookUp) -> tuple[str, dict[str, str]]:
    """Replace `$goal` and each `${key}` by shell variables; return the command and the variables' values.

    The shell expands the variables, so it never parses their values as part of the command, regardless of the quotes
    around them. In a here-document whose end is quoted, the shell expands nothing, and a value becomes text.

    Raises:
        KeyError: a key is not allowed, or is not set.
        ValueError: something might run a value as a command.
    """
    filling = _Filling(look_up=look_up, reader=find_reader(command))
    result, offset = "", 0
    contexts, starts = [""], list[int]()  # the open quotes and parentheses, and their positions
    documents: list[re.Match[str]] = []
    while match := _TOKEN.search(command, offset):
        token, context = match[0], contexts[-1]
        if (context == "'" and token[0] == "\\") or (context in _QUOTED and token[0] in "#<"):
            token = token[0]  # a plain character here, and the next one may close the quotes
        result += command[offset : match.start()] + ("" if token[0] == "$" and token != "$(" else token)
        offset = match.start() + len(token)
        if token == "$goal" or match["key"]:
            word_starts = [*starts, *([] if context in _QUOTED else [match.start()])]
            arithmetic = any(command[start - 1 : start + 1] == "((" for start in word_starts)
            name = filling.add(token, match["key"], arithmetic=arithmetic)
            result += ("${%s}" if arithmetic else _QUOTED.get(context, '"${%s}"')) % name
        elif token.startswith("<<"):
            documents.append(match)
        elif token == "\n" and context not in _QUOTED:
            for document in documents:
                body, offset = filling.document(command, offset, document)
                result += body
            documents = []
        elif token == (")" if context == "(" else context):
            contexts.pop()
            starts.pop()
        elif _opens(token, context):
            contexts.append(token[-1])
            starts.append(match.start())
    return result + command[offset:], filling.values


def _opens(token: str, context: str) -> bool:
    """True if a token opens quotes or a nested command."""
    return token == "$(" and context != "'" or context in ("", "(") and token in ("'", '"', "(")


@dataclass(slots=True, kw_only=True)
class _Filling:
    """Values filled into one command."""

    look_up: LookUp
    reader: Reader | None
    values: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, token: str, key: str | None, *, arithmetic: bool = False, nested: bool = False) -> str:
        """Add the value of a placeholder, and return the name of its shell variable.

        Args:
            token: The placeholder.
            key: Its key; None for the goal.
            arithmetic: True if the shell evaluates the value.
            nested: True if the value is part of another expansion in a here-document.
        """
        value = self._value(token, key, is_number=arithmetic)
        if nested and not HARMLESS.fullmatch(value):
            raise ValueError(
                f"{_limit(token, HARMLESS)} here, because the here-document contains `$(` or another expansion"
            )
        name = f"FILLED_{len(self.values) + 1}"
        self.values[name] = value
        return name

    def _value(self, token: str, key: str | None, *, is_number: bool = False) -> str:
        value, author = self.look_up(key or "goal")
        value = value.replace("\0", "")
        if is_number and not re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
            raise ValueError(f"{token} is not a whole number, and a shell evaluates it")
        if author and not HARMLESS.fullmatch(value):
            raise ValueError(f"{_limit(token, HARMLESS)}, because {author} wrote it; let it be the label of an edge")
        if self.reader is not None and not self.reader.allowed.fullmatch(value):
            raise ValueError(f"{self.reader.limit(token)}; put the command into a script, and run: ./script {token}")
        return value

    def document(self, command: str, offset: int, start: re.Match[str]) -> tuple[str, int]:
        """Fill in the body of a here-document that begins at an offset, and return it with the offset of its end.

        If it has no end, it is no here-document, and nothing is read.
        """
        word = start["end"]
        end = word.strip("'\"").removeprefix("\\")
        tabs = r"\t*" if start["tabs"] else ""
        last = re.compile(rf"^{tabs}{re.escape(end)}(?:\n|\Z)", re.MULTILINE).search(command, offset)
        if last is None:
            return "", offset
        body = command[offset : last.start()]
        if word == end:
            nested = _NESTED.search(body) is not None
            return _BODY_TOKEN.sub(lambda match: self._expansion(match, nested), body) + last[0], last.end()
        filled = _PLACEHOLDER.sub(lambda match: self._text(match[0], match["key"], word), body)
        if end in (line.lstrip("\t") for line in filled.split("\n")):
            raise ValueError(f"a value would end the here-document; choose another word than {end}")
        return filled + last[0], last.end()

    def _expansion(self, match: re.Match[str], nested: bool) -> str:
        if match[0][0] == "\\":
            return match[0]
        return f"${{{self.add(match[0], match['key'], nested=nested)}}}"

    def _text(self, token: str, key: str | None, word: str) -> str:
        value = self._value(token, key)
        if not HARMLESS.fullmatch(value):
            raise ValueError(f"{_limit(token, HARMLESS)} in a here-document that ends at {word}; leave its quotes out")
        return value


def _limit(token: str, allowed: re.Pattern[str]) -> str:
    return f"{token} may contain only {_SIGNS[allowed]}"
