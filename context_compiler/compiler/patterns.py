"""Patterns for each sort of specific, with the checks that a match must pass.

Every repetition is bounded, so that the time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum


class Sort(StrEnum):
    """Sort of a specific."""

    URL = "url"
    PATH = "path"
    DATE = "date"
    VERSION = "version"
    ID = "id"
    NUMBER = "number"
    NAME = "name"
    COMMAND = "command"
    RULE = "rule"


_SEG = r"[A-Za-z0-9_.@+%~=\u00c0-\u024f\u0370-\u052f-]"
_WIDE = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,40}+(?=[/\\]|\.[A-Za-z])"
_EXT = (
    "py|pyi|ipynb|js|mjs|cjs|ts|tsx|jsx|json|jsonl|md|rst|txt|ya?ml|toml|cfg|ini|conf|env|lock|log|csv|tsv|xml"
    "|html?|css|scss|c|h|cc|cpp|hpp|cs|rs|go|java|kt|swift|rb|php|sh|bash|zsh|ps1|bat|sql|db|sqlite|pdf|docx?|xlsx?"
    "|pptx?|png|jpe?g|gif|svg|zip|tar|gz|tgz|whl|so|dll|exe|pcap|pem|key|crt|proto|graphql|tf|vue|ex|exs|scala|lua"
    "|pl|r|jl|traj|patch|diff|bak|tmp"
)
_MONTH = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    "|Nov(?:ember)?|Dec(?:ember)?|Januar|Februar|März|Mai|Juni|Juli|Oktober|Dezember|janvier|février|mars|avril"
    "|mai|juin|juillet|août|septembre|octobre|novembre|décembre|enero|febrero|marzo|abril|mayo|junio|julio|agosto"
    "|septiembre|octubre|noviembre|diciembre)"
)
_ZONE = r"(?:\ ?(?:UTC|GMT|EST|EDT|CST|CDT|MST|MDT|PST|PDT|CET|CEST|BST|JST|IST)\b)?"
UNIT = (
    "%|percent|per cent|‰|°\\ ?[CF]?|ms|[µμn]s|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|days?|weeks?"
    "|months?|years?|yrs?|Tage?n?|Stunden?|Wochen?|jours?|heures?|días?|horas?|km/h|mph|km|m|cm|mm|miles?|mi|ft"
    "|feet|foot|inch(?:es)?|yards?|kg|g|mg|lbs?|pounds?|oz|tons?|l|ml|lit(?:er|re)s?|gallons?|[kKMGTP]i?B|bytes?"
    "|bits?|[kMG]bps|[kMG]?Hz|[km]?W|kWh|[km]?V|mA|A|px|pt|rem|em|rpm|dpi|fps|tokens?|lines?|rows?|files?|tests?"
    "|pages?|words?|chars|characters|items?|users?|people|persons?|passengers?|seats?|bags?|nights?|guests?|times|x"
    "|k|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD|dollars?|euros?|cents?|yen|million|billion|bn|mio|crore|lakh"
)
UNIT_WIDE = "[€$£¥₹₩元円원]|公里|千米|公斤|小时|小時|時間|分钟|分鐘|[天岁歳人个個件页頁度米秒]"
_DIGITS = r"\d{1,15}(?:[,.'’\u202f\u00a0]\d{1,15}){0,6}"
_PROGRAMS = (
    "git|npm|npx|pnpm|yarn|bun|pip3?|pipx|uvx?|poetry|conda|python3?|pytest|node|deno|tsx?c?|docker|docker-compose"
    "|podman|kubectl|helm|terraform|ansible|aws|gcloud|az|gh|curl|wget|ssh|scp|rsync|tar|unzip|chmod|chown|mkdir"
    "|rmdir|rm|cp|mv|ls|cd|cat|head|tail|grep|rg|find|sed|awk|xargs|echo|export|source|sudo|systemctl|journalctl"
    "|apt(?:-get)?|brew|dnf|yum|cargo|rustc|go|javac?|mvn|gradle|gcc|g\\+\\+|cmake|make|bash|sh|zsh|ruff|mypy"
    "|pyright|tox|nox|alembic|flask|django-admin|psql|mysql|sqlite3|redis-cli|openssl|nc|nmap|tshark|open|create"
    "|edit|goto|submit|search_dir|search_file|find_file|vim|nano|touch|kill|ps|env|diff|patch|which|ln|df|du"
)
_STANDARDS = re.compile(
    r"(?:UTF|SHA|ISO|RFC|GPT|COVID|AES|RSA|TLS|HTTP|IPV|WIN|BASE|ASCII|CP|MP|UINT|INT|FLOAT|ARM|PM|AM)[-_]?\d+"
)
_ROOTS = frozenset(
    "tmp etc home usr var opt bin sbin dev proc root srv mnt lib app data Users Library workspace testbed".split()
)
_FOLDERS = frozenset(
    "src lib test tests docs doc bin app apps packages scripts config node_modules dist build components utils"
    " templates static public migrations fixtures examples assets .github .git internal cmd pkg include vendor tools"
    " data".split()
)
_LIBRARIES = re.compile(
    r"(?i)(?:node|next|vue|express|three|d3|chart|nuxt|react|angular|ember|backbone|discord|nest|socket|asp)\.(?:js"
    r"|net)"
)
_UNAMBIGUOUS = frozenset("git npm pip docker kubectl cargo uv yarn pnpm poetry sudo terraform gh".split())
"""Programs whose names begin no sentence."""


def _is_path(text: str) -> bool:
    """True if a text with slashes is a path, unlike `and/or`, `24/7` and `application/json`."""
    parts = [part for part in re.split(r"[/\\]", text) if part]
    if not parts or all(part.strip(".,%+-=~").isdigit() for part in parts) or not re.search(r"[^\W\d_]", text):
        return False
    if re.match(r"~/|\.{1,2}[/\\]|[A-Za-z]:[\\/]|\\\\", text):
        return True
    extension = bool(re.search(r"(?<=[\w)])\.[A-Za-z][A-Za-z0-9]{0,7}$", parts[-1])) or parts[0].startswith("__")
    if text[0] in "/\\":
        several = text[0] == "/" and (len(parts) > 1 or re.search(r"[_.\d-]", parts[0]) is not None)
        return extension or several or parts[0] in _ROOTS
    if "\\" in text:
        return extension and "/" not in text
    odd = any(re.search(r"[_.\d-]", part) for part in parts)
    folder = parts[0] in _FOLDERS
    return extension or (folder and text.count("/") > 0) or (odd and len(parts) > 2) or (odd and text.endswith("/"))


def _is_file(text: str) -> bool:
    return not _LIBRARIES.fullmatch(text) and not re.fullmatch(r"(?i)[\d.]+[a-z]?|e\.g|i\.e|[a-z]\.[a-z]", text)


def _is_id(text: str) -> bool:
    return not _STANDARDS.fullmatch(text.upper()) and not re.fullmatch(
        r"(?:19|20)\d\ds?|\d{1,3}(?:AM|PM|GB|MB|KB|TB)", text
    )


def _is_value(text: str) -> bool:
    """True if the text after `id:` or `order number` can be an id: it has a digit, or consists of capitals."""
    return _is_id(text) and (any(map(str.isdigit, text)) or (text.isupper() and len(text) > 2))


def _is_name(text: str) -> bool:
    """True if a quotation is a name: short, and not a single lower-case word."""
    inner = text[1:-1].strip()
    if not re.search(r"[^\W\d_]", inner) or len(inner.split()) > 8 or "\\" in inner:
        return False
    return not re.fullmatch(r"[a-zà-ÿ'’-]+[.,!?]?", inner) and not re.search(r"[{}<>;=]|^[,.:)\]]", inner)


def is_command(text: str) -> bool:
    """True if a line that begins with a program's name is a command, with flags, paths or pipes that prose lacks."""
    first, _, rest = text.partition(" ")
    if not rest or len(rest) < 2:
        return False
    telling = re.search(r"(?:^| )--?[A-Za-z]|[/|<>*=$]|\w\.\w|&&|^\d+$|==|^[\w.-]+[_:-]\w", rest)
    spoken = re.match(
        r"(?:the|a|an|sure|it|them|this|that|up|out|to|is|in|me|my|your|for|with|and|all|of)(?:\s|$)", rest
    )
    if first in _UNAMBIGUOUS:
        return not spoken and len(rest.split()) < 30
    return bool(telling) and not spoken


_DIGIT = "0123456789"


def _anything(text: str) -> bool:
    return True


COMMANDS: tuple[tuple[str, bool], ...] = (
    (r"(?m)^[ \t]{0,8}(?:\$|❯|bash-\$) {1,3}([^\s#][^\n]{2,300})", False),
    (rf"`((?:sudo )?(?:{_PROGRAMS}) [^`\n]{{1,300}})`", False),
    (r"\"(?:command|cmd|bash|script|run)\"\s{0,3}:\s{0,3}\"((?:[^\"\\\n]|\\.){2,300})\"", False),
    (rf"(?m)^[ \t]{{0,8}}(?:[-*] )?((?:sudo )?(?:{_PROGRAMS}) [^\n`]{{1,300}})$", True),
)
"""Patterns of contexts of a command, each with True if the match must also pass `is_command`."""

TABLE: tuple[tuple[Sort, str, str, Callable[[str], bool]], ...] = (
    (Sort.URL, r"(?<![\w])[a-zA-Z][a-zA-Z0-9+]{1,15}://[^\s<>\"'`{}|\\^\[\]（）。，、」）]{2,1000}", ":", _anything),
    (Sort.URL, r"(?<![\w.@/-])(?:www\.[\w-]{1,60}|[a-zA-Z0-9-]{1,60})(?:\.[a-z0-9-]{2,40}){0,3}\.(?:com|org|net|io"
               r"|dev|edu|gov|co|ai)(?:/[\w./%?=&#~+-]{0,300}|(?![\w.-]*[\w(@-]))", ".", _anything),
    (Sort.URL, r"(?<![\w.:-])(?:localhost"
               r"|\d{1,3}(?:\.\d{1,3}){3})(?::\d{2,5})?(?:/[\w./%?=&#~+-]{0,200})?(?![\w.]\d)", ":./",
     lambda text: text != "localhost"),
    (Sort.ID, r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,60}(?:\.[\w-]{1,40}){0,3}\.[A-Za-z]{2,20}(?!\w)", "@", _anything),
    (Sort.PATH, rf"(?<![\w./\\~@:<=-])(?=(?:{_SEG}{{0,120}}+|{_WIDE}|[A-Za-z]:)[/\\])"
                rf"(?:[A-Za-z]:[\\/]|~/|\.{{1,2}}[/\\]|/|\\\\)?(?:(?:{_SEG}{{1,120}}+|{_WIDE})[/\\]){{0,30}}"
                rf"(?:{_SEG}{{1,120}}|{_WIDE}\.[A-Za-z]{{1,8}})?(?<=[^\s])", "/\\",
     lambda text: ("/" in text or "\\" in text) and _is_path(text)),
    (Sort.PATH,
        rf"(?<![\w/\\@.-])\.?[A-Za-z0-9_\u00c0-\u024f\u0370-\u052f][A-Za-z0-9_.+\u00c0-\u024f\u0370-\u052f-]{{0,100}}"
        rf"\.(?:{_EXT})(?![\w(-]|\.\w)", ".", _is_file),
    (Sort.PATH, r"(?<![\w/\\.])(?:\.(?:env|gitignore|dockerignore|bashrc|zshrc|npmrc|editorconfig|prettierrc"
                r"|eslintrc)|Dockerfile|Makefile|Jenkinsfile)\b", ".DMJ", _anything),
    (Sort.DATE, r"(?<![\w.-])\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?(?:\.\d{1,9})?(?:Z"
                r"|[+-]\d{2}:?\d{2})?)?(?![\w-])", "-", _anything),
    (Sort.DATE, r"\d{4}年\d{1,2}月(?:\d{1,2}日)?|\d{1,2}月\d{1,2}日", "月", _anything),
    (Sort.DATE, r"(?<![\w./-])(?:\d{1,2}/\d{1,2}/\d{2,4}|\d{1,2}\.\d{1,2}\.(?:19|20)\d\d|\d{4}/\d{2}/\d{2})(?![\w/]"
                r"|\.\d)", "/.", _anything),
    (Sort.DATE, rf"\b\d{{1,2}}(?:st|nd|rd|th|\.)?(?: (?:of|de))? {_MONTH}\b(?:\.?,? (?:de )?(?:19"
                rf"|20)\d\d)?", _DIGIT, _anything),
    (Sort.DATE, rf"\b{_MONTH}\.? (?:\d{{1,2}}(?:st|nd|rd|th)?\b(?!:)(?:,? (?:19|20)\d\d\b)?|(?:19"
                rf"|20)\d\d\b)", _DIGIT, lambda text: text[0].isupper()),
    (Sort.DATE, rf"(?<![\w:./-])\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?![\w:])(?:\ ?(?:[ap]m\b"
                rf"|[ap]\.m\.))?{_ZONE}", ":", _anything),
    (Sort.DATE, rf"(?i:(?<![\w:.$-])\d{{1,2}}(?::\d{{2}})?\ ?(?:[ap]m\b|[ap]\.m\.)){_ZONE}", _DIGIT, _anything),
    (Sort.DATE, r"\b(?:[Oo]n|[Bb]y|[Nn]ext|[Tt]his|[Uu]ntil|[Ll]ast|[Ee]very) (?:Mon|Tues|Wednes|Thurs|Fri|Satur"
                r"|Sun)day\b", "y", _anything),
    (Sort.VERSION, r"(?<![\w.])v\d{1,6}(?:\.\d{1,6}){0,3}(?:[-.+]?(?:rc|alpha|beta|a|b|dev|post"
                   r"|pre)[.-]?\d{0,4})?(?![\w])", "v", _anything),
    (Sort.VERSION, r"(?<![\w.,$€£-])\d{1,4}\.\d{1,4}\.\d{1,6}(?:[-+.]?(?:rc|alpha|beta|a|b|dev|post"
                   r"|pre)[.-]?\d{0,4})?(?![\w,]|\.\d)", ".", _anything),
    (Sort.VERSION, r"(?<===)\d[\w.]{0,20}|(?<=[>~]=)\d[\w.]{0,20}|(?<=[a-z]@)[\^~]?\d[\w.]{0,20}"
                   r"|[\^~]\d[\w.]{0,20}", "=@^~", _anything),
    (Sort.VERSION, r"\b(?:[Pp]ython|Node(?:\.js)?|[Vv]ersion|[Rr]elease|Postgres(?:QL)?|PostgreSQL|MySQL|Ubuntu"
                   r"|Debian|Fedora|Java|JDK|Go|Rust|Django|Flask"
     r"|Rails|PHP|Ruby|React|Vue|Angular|Redis|Kafka|TypeScript|Kubernetes|iOS|Android|Windows|macOS|TLS"
     r"|HTTP)[ -/]v?\d{1,4}(?:\.\d{1,4}){0,3}(?!\w|\.\d|%)", _DIGIT, _anything),
    (Sort.ID, r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "-", _anything),
    (Sort.ID, r"\b0x[0-9a-fA-F]{3,64}\b|\b(?:sha256|sha1|md5):[0-9a-f]{7,64}\b|\bCVE-\d{4}-\d{3,7}\b", "x:-",
     _anything),
    (Sort.ID, r"\b(?=[0-9]{0,63}[a-f])(?=[a-f]{0,63}\d)[0-9a-f]{7,64}\b", _DIGIT, _anything),
    (Sort.ID, r"(?<![\w-])[A-Z][A-Z0-9]{1,9}-\d{1,8}(?![\w.]\d|-\d{1,2}\b|\w)", "-", _is_id),
    (Sort.ID, r"(?<![\w&/])(?:#|GH-|PR #?|MR !)\d{2,8}\b", "#-P!", _anything),
    (Sort.ID,
        r"(?<![\w-])[A-Za-z]{2,20}(?:[_-][A-Za-z]{2,20}){0,3}[_-](?=[A-Za-z]{0,39}\d)[A-Za-z0-9]{3,64}"
        r"(?:[_-][A-Za-z0-9]{2,64}){0,2}(?![\w-])", "_-", _is_id),
    (Sort.ID, r"(?<![\w.-])(?=[A-Z]{0,19}\d)(?=\d{0,19}[A-Z])[A-Z0-9]{5,20}(?![\w-])", _DIGIT, _is_id),
    (Sort.ID, r"(?i:(?:[\"']?\b(?:\w{0,30}_)?(?:id|ids|uuid|guid|number|no|code|key|ref|sha|token"
              r"|hash)[\"']?\s?[:=]\s{0,3}\[?[\"']?))([A-Za-z0-9][\w.:-]{1,79})", ":=", _is_value),
    (Sort.ID, r"(?i:\b(?:id|order|invoice|ticket|account|booking|reservation|confirmation|flight|case|customer"
              r"|tracking|reference|record|commit|issue)"
     r"(?: (?:id|no\.?|number|code|ref|key))?(?: is| was|:)? #?)([A-Za-z0-9][\w-]{2,39})(?![\w@])", "", _is_value),
    (Sort.ID, r"(?<![\w.])\+\d{1,3}[ -]?(?:\(\d{1,4}\)[ -]?)?\d{2,4}(?:[ -]?\d{2,4}){1,4}(?!\w)"
              r"|(?<![\w.,$€£-])\d{6,20}(?![\w.,%]\d|\w)", _DIGIT, _anything),
    (Sort.NUMBER, rf"(?i:(?:USD|EUR|GBP|CHF|US\$|[€$£¥₹₩])\ ?{_DIGITS}(?:\ ?(?:k|m|bn|million"
                  rf"|billion)\b)?)(?:/\w{{1,10}})?", _DIGIT, _anything),
    (Sort.NUMBER, rf"(?<![\w.,#-])[-+−±~≈]?{_DIGITS}[ -]?(?:{UNIT_WIDE}|(?:%|°)(?!\w)|(?:{UNIT})\b(?!\w))", _DIGIT,
     _anything),
    (Sort.NUMBER, r"(?<![\w.,#/:-])[-+−±]?(?:\d{1,3}(?:[,'’\u202f]\d{3}){1,5}(?:\.\d{1,6})?"
                  r"|\d{1,9}\.\d{1,9})(?![\w/-]|[.,:]\d)", _DIGIT, _anything),
    (Sort.NUMBER, r"(?i)\b(?:port|line|lines|page|room|gate|terminal|pid|exit code|status|error|step|chapter|table"
                  r"|row|column) \d{1,7}(?![\w.]\d|\w)", _DIGIT, _anything),
    (Sort.NAME, r"(?<!\w)\"[^\"\n]{2,60}\"(?!\s{0,3}:)|“[^”\n]{2,60}”|«[^»\n]{2,60}»|「[^」\n]{1,60}」"
                r"|『[^』\n]{1,60}』|„[^“”\n]{2,60}[“”]"
     r"|(?<![\w'])'[^'\n]{2,60}'(?!\w|\s{0,3}:)|`[^`\n]{2,60}`", "\"“«「『„'`", _is_name),
)  # fmt: skip
"""Rows of sort, pattern, characters, and check, in order of precedence.

If the pattern has a group, the group is the match. A match contains at least one of the characters, so a text without
any is skipped; an empty string means no such condition. The check must be true for the match.
"""
