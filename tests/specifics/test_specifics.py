"""Every sort of specific is measured on labelled lines: what is found of what is there, and what is found besides."""

from __future__ import annotations

import time

import pytest
from hypothesis import given

from context_compiler.specifics import SCANNED, Told, comparable, specifics
from context_compiler.specifics.sorts import Sort
from tests.support.texts import texts

LABELLED = {
    Sort.URL: """\
Please follow https://docs.example.org/guide/start.html before you begin. => https://docs.example.org/guide/start.html
The repo is at git+ssh://git@example.com/team/repo.git now => git+ssh://git@example.com/team/repo.git
(see http://example.com/a_(b)) => http://example.com/a_(b)
Open http://localhost:3000/health and look. => http://localhost:3000/health
server listens on 127.0.0.1:8080 => 127.0.0.1:8080
curl -s "https://api.example.com/v1/users?id=7&full=true" => https://api.example.com/v1/users?id=7&full=true
DATABASE_URL=postgres://app:pw@db.internal:5432/app => postgres://app:pw@db.internal:5432/app
[the docs](https://example.com/docs#install) say so => https://example.com/docs#install
Ping 10.0.0.12 first. => 10.0.0.12
<a href='https://example.com/x'>x</a> => https://example.com/x
说明在https://example.com/zh/安装，请看 => https://example.com/zh/安装
s3://bucket/key/part-0001.parquet was written => s3://bucket/key/part-0001.parquet
Our site is www.heron-travel.com. => www.heron-travel.com
go to github.com/pydantic/pydantic-ai => github.com/pydantic/pydantic-ai
connect_start crypto.chal.csaw.io 1337 => crypto.chal.csaw.io
Write to bob@example.com about it. =>
The ratio is 3:2, e.g. for width. =>
Call obj.method() on it. =>
We said yes/no and left. =>
Use node.js with three.js. =>
dict: a://b =>
the i.e. and the e.g. =>
import os.path.join =>
It weighs 1.5.kg or so =>""",
    Sort.PATH: """\
alright, read packages/coding-agent/src/tui/tui-renderer.ts in full => packages/coding-agent/src/tui/tui-renderer.ts
[File: /pydicom__pydicom/reproduce_bug.py (1 lines total)] => /pydicom__pydicom/reproduce_bug.py
(Current directory: /marshmallow-code__marshmallow) => /marshmallow-code__marshmallow
Look into `src/marshmallow/fields.py`, line 1474. => src/marshmallow/fields.py
read ../shared/notes.md => ../shared/notes.md
{"path":"docs/theme.md","limit":40} => docs/theme.md
The key is in ~/.ssh/id_rsa now => ~/.ssh/id_rsa
cd /tmp && ls => /tmp
Open C:\\Users\\me\\report.docx please => C:\\Users\\me\\report.docx
edit tests/test_fields.py and pyproject.toml. => tests/test_fields.py ;; pyproject.toml
The footer lives in footer.ts => footer.ts
请打开src/app/main.py文件 => src/app/main.py
文件在 /home/用户/报告.pdf 里 => /home/用户/报告.pdf
setup.cfg:12: error => setup.cfg
add it to .gitignore and the Dockerfile => .gitignore ;; Dockerfile
It is under node_modules/.bin/ => node_modules/.bin/
./run.sh --fast => ./run.sh
from "../theme/theme.js" => ../theme/theme.js
at Object.<anonymous> (/app/dist/server.js:10:5) => /app/dist/server.js
see docs/übersicht.md => docs/übersicht.md
He said and/or she/he/they. =>
We are open 24/7, since 10/12/2024. =>
Drive at 50 km/h; N/A; TCP/IP; input/output =>
Content-Type: application/json =>
We use Node.js and Vue.js here. =>
</div> and <br/> =>
e.g. 3.5 and i.e. four =>
type /help for help =>
1/2 cup or 3/4 =>
the client/server split =>""",
    Sort.DATE: """\
The current time is 2024-05-15 15:00:00 EST. => 2024-05-15 15:00:00
book a flight to Seattle on May 20th. => May 20th
"scheduled_departure_time_est": "06:00:00" => 06:00:00
I don't want to fly before 11 AM EST => 11 AM EST
Meeting on 3 June 2025 at 14:30. => 3 June 2025 ;; 14:30
created_at 2025-11-02T08:15:30Z ok => 2025-11-02T08:15:30Z
Born 12.05.1990 in Bonn => 12.05.1990
Due 10/12/2024. => 10/12/2024
We meet on Friday at 5pm => on Friday ;; 5pm
am 3. Mai 2024 => 3. Mai 2024
le 14 juillet 2023 => 14 juillet 2023
el 5 de mayo => 5 de mayo
会议在2024年5月1日 => 2024年5月1日
released in March 2021 => March 2021
between 9:00 a.m. and noon => 9:00 a.m.
Dec 24, 2024 is a Tuesday => Dec 24, 2024
log 2024/01/31 done => 2024/01/31
next Monday then => next Monday
by 23:59 UTC => 23:59 UTC
They may go at any time =>
The ratio is 16:9 or 3:2 =>
main.py:12:30 fails =>
version 1.2.3 is out =>
1-2 times; 3-4 people =>
I march 10 miles =>
You may 5 times try =>
call 555-1234-99 =>
score 10/12 =>""",
    Sort.VERSION: """\
pydantic-ai 2.68.0 is new => 2.68.0
We run Python 3.12 here => Python 3.12
tagged v1.4.0-rc.1 today => v1.4.0-rc.1
"react": "^18.2.0" => 18.2.0
pip install requests==2.31.0 => 2.31.0
needs django>=4.2 => 4.2
on Ubuntu 22.04 => Ubuntu 22.04
upgrade to version 7 => version 7
Node 20 is required => Node 20
npm i left-pad@1.3.0 => 1.3.0
the v2 API => v2
PostgreSQL 16.1 => PostgreSQL 16.1
torch 2.1.0a0 => 2.1.0a0
升级到v3.1吧 => v3.1
release 1.0.0+build.5 is out => 1.0.0
uses TLS 1.3 => TLS 1.3
pi-coding-agent 0.12.9 => 0.12.9
from 1.9.10 to 1.10.0 => 1.9.10 ;; 1.10.0
At 192.168.1.10 it runs =>
It costs 3.50 euros =>
pi is 3.14159 =>
Python is nice =>
on 12.05.2024 =>
1,234.50 in total =>
Version control matters =>
Go 10 miles north... =>
the values 1.5 and 2.5 =>
v for victory =>""",
    Sort.ID: """\
Sure, my user ID is mia_li_3668. => mia_li_3668
"credit_card_4421486": {"source": "credit_card"} => credit_card_4421486
"flight_number": "HAT069" => HAT069
{"reservation_id": "MHLTZF"} => MHLTZF
cancel reservation ZFA04Y please => ZFA04Y
run 7f9c24e8-3b12-4fef-91e0-5a6b2c3d4e5f failed => 7f9c24e8-3b12-4fef-91e0-5a6b2c3d4e5f
fixed in commit 3f2a9bc => 3f2a9bc
sha256:9f86d081884c7d65 => sha256:9f86d081884c7d65
see PROJ-1234 and #1867 => PROJ-1234 ;; #1867
call_oIHazX6yQrB8hUwl4cRilFKj returned => call_oIHazX6yQrB8hUwl4cRilFKj
Your order number is 8841-22. => 8841-22
Invoice 2024001 is paid => 2024001
at 0x7ffde10 in main => 0x7ffde10
mail mia.li3818@example.com => mia.li3818@example.com
CVE-2024-3094 is bad => CVE-2024-3094
call +49 170 1234567 => +49 170 1234567
tracking 1Z999AA10123456784 => 1Z999AA10123456784
ticket_id: T-4711 => T-4711
订单HAT083已确认 => HAT083
pod web-7d4b9c6f5-x2x9k restarted => web-7d4b9c6f5-x2x9k
decompile --function_name FUN_004015dc => FUN_004015dc
encoded as UTF-8 with SHA-256 =>
GPT-4 and COVID-19 =>
The facade is defaced. =>
in the 1990s =>
H264, MP3, 4K =>
my ID card is lost =>
the order is wrong =>
well-known state-of-the-art =>
In 2024 we met =>
IPV4 and BASE64 =>
the flight was nice =>""",
    Sort.NUMBER: """\
That is $1,299.00 in total => $1,299.00
economy 121 USD => 121 USD
It takes 12.5 ms => 12.5 ms
We have 3 GB left => 3 GB
for 40 passengers => 40 passengers
down 4.5 % since => 4.5 %
about 2.5 million => 2.5 million
at 5 km/h => 5 km/h
listens on port 8080 => port 8080
[File: x (94 lines total)] => 94 lines
it weighs 70kg => 70kg
Price: €49 => €49
wait 30 seconds => 30 seconds
a $250 voucher and $30 per passenger => $250 ;; $30
总共120元 => 120元
at -40 °C => -40 °C
12,450 entries => 12,450
pi is 3.14159 => 3.14159
see line 1474 => line 1474
1.5k tokens => 1.5k
300 dpi at 16 px => 300 dpi ;; 16 px
٣٠ kg => ٣٠ kg
kostet 1.299,00 EUR => 1.299,00 EUR
one of them =>
the 3rd time =>
HAT069 departs =>
pydantic 2.68.0 =>
2024-05-15 =>
a1b2c3 =>
1. First item =>
[12] a footnote =>
step by step =>
v2 of it =>""",
    Sort.NAME: """\
call the project "Heron" from here => "Heron"
the table “Orders 2024” is empty => “Orders 2024”
in 'Advanced Settings' => 'Advanced Settings'
a key named `max_tokens` => `max_tokens`
the class `TimeDelta` => `TimeDelta`
«Les Misérables» is on => «Les Misérables»
报告叫「年度总结」 => 「年度总结」
press "Save as" => "Save as"
{"first_name": "Mia"} => "Mia"
"city": "New York" => "New York"
the song "Yellow Submarine", twice => "Yellow Submarine"
error 'KeyError: x' => 'KeyError: x'
„Der Prozess“ von Kafka => „Der Prozess“
the flag `is_open` => `is_open`
label 'P0 blocker' => 'P0 blocker'
function `_hash` here => `_hash`
the "dark theme" file => "dark theme"
『坊っちゃん』を読む => 『坊っちゃん』
the branch 'release 2' => 'release 2'
"Networking 1", worth 10 points => "Networking 1"
I don't think it won't work =>
so-called "smart" people =>
{"status": "available"} =>
{"basic_economy": 17} =>
5'10" tall =>
print("") =>
x = "{y}" =>
the dogs' and the cats' bowls =>
it's what it's =>""",
    Sort.COMMAND: """\
Run `git push --force-with-lease` now => git push --force-with-lease
$ pytest -q tests/test_x.py => pytest -q tests/test_x.py
{"command":"python reproduce.py"} => python reproduce.py
npm run build => npm run build
pip install -e .[dev] => pip install -e .[dev]
- docker compose up -d => docker compose up -d
bash-$ ls -F => ls -F
try `kubectl get pods -n web` => kubectl get pods -n web
tshark -n -r networking.pcap -q => tshark -n -r networking.pcap -q
grep -rn "TimeDelta" src => grep -rn "TimeDelta" src
find . -name '*.py' | head => find . -name '*.py' | head
edit 1:1 => edit 1:1
open src/marshmallow/fields.py => open src/marshmallow/fields.py
python reproduce.py => python reproduce.py
{"cmd": "make test"} => make test
sudo apt install jq => sudo apt install jq
curl -s localhost:8080/health => curl -s localhost:8080/health
cat a.txt => cat a.txt
uv run pytest => uv run pytest
mkdir -p build/out => mkdir -p build/out
make sure that it works =>
find the file and open it =>
go to the store =>
cat is a nice animal =>
open the window =>
We use git a lot =>
touch nothing =>
head over to the docs =>
echo is what I hear =>
git is a tool =>
which of them =>
Create a new file =>""",
    Sort.RULE: """\
Never push to main without a review. => Never push to main without a review.
The handler must not raise. => The handler must not raise.
From now on, answer in German. => From now on, answer in German.
Basic economy flights cannot be modified. => Basic economy flights cannot be modified.
You must never charge twice. => You must never charge twice.
Please don't touch the migrations folder. => Please don't touch the migrations folder.
We no longer support Python 3.9. => We no longer support Python 3.9.
Refunds are not allowed after 24 hours. => Refunds are not allowed after 24 hours.
Always use tabs. => Always use tabs.
It does not support Windows. => It does not support Windows.
Smoking is prohibited here. => Smoking is prohibited here.
请不要删除数据。 => 请不要删除数据。
Whenever you change the schema, update the docs. => Whenever you change the schema, update the docs.
Ask me before you install anything. => Ask me before you install anything.
Only use the standard library. => Only use the standard library.
I prefer morning flights. => I prefer morning flights.
Fine. The theme must never explode. Thanks. => The theme must never explode.
The ticket cannot be changed online. => The ticket cannot be changed online.
これは使わないでください。 => これは使わないでください。
Do not use eval. => Do not use eval.
Leave the public API as it is. => Leave the public API as it is.
Never mind, I found it. =>
Have you ever been there? =>
I never went to Paris. =>
It is done. =>
No problem! =>
I have never seen it. =>
if (!x) { return never; } =>
Why is it not allowed? =>
He always takes the train. =>
Thanks a lot for the help! =>""",
}
"""Lines, each with what of that sort is in it."""

FLOORS = {
    Sort.URL: (0.9, 0.9),
    Sort.PATH: (0.9, 0.9),
    Sort.DATE: (0.9, 0.9),
    Sort.VERSION: (0.9, 0.9),
    Sort.ID: (0.9, 0.9),
    Sort.NUMBER: (0.9, 0.9),
    Sort.NAME: (0.9, 0.9),
    Sort.COMMAND: (0.9, 0.9),
    Sort.RULE: (0.85, 0.9),
}
"""Precision and recall that must be reached on these lines."""


def labels(sort: Sort) -> list[tuple[str, set[str]]]:
    found: list[tuple[str, set[str]]] = []
    for line in LABELLED[sort].splitlines():
        said, _, expected = line.rpartition(" =>")
        found.append((said, {one.strip() for one in expected.split(";;") if one.strip()}))
    return found


def measured(sort: Sort) -> tuple[float, float, list[object]]:
    """Precision and recall on the labelled lines, and the lines that are wrong."""
    right = extra = missed = 0
    wrong: list[object] = []
    for said, expected in labels(sort):
        got = {one.verbatim for one in specifics(said) if one.sort is sort}
        right, extra, missed = right + len(got & expected), extra + len(got - expected), missed + len(expected - got)
        if got != expected:
            wrong.append((said, expected, got))
    return right / max(1, right + extra), right / max(1, right + missed), wrong


@pytest.mark.parametrize("sort", list(Sort))
def test_what_is_there_is_found_and_little_else(sort: Sort) -> None:
    assert len(labels(sort)) >= 20 and sum(not expected for _, expected in labels(sort)) >= 8
    precision, recall, wrong = measured(sort)
    print(f"{sort}: precision {precision:.3f}, recall {recall:.3f}")
    assert precision >= FLOORS[sort][0], wrong
    assert recall >= FLOORS[sort][1], wrong


@given(text=texts())
def test_everything_found_stands_where_it_says(text: str) -> None:
    for one in specifics(text):
        assert text[one.offset : one.offset + len(one.verbatim)] == one.verbatim
        assert one.text == comparable(one.verbatim)


def test_of_a_very_long_text_both_ends_are_read() -> None:
    text = "see src/first.py " + "x " * (SCANNED + 10) + " see src/last.py"
    found = specifics(text)
    assert [one.verbatim for one in found] == ["src/first.py", "src/last.py"]
    assert text[found[1].offset :].startswith("src/last.py")


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        " ",
        "/",
        "a/",
        "\\",
        "'",
        '"',
        "`",
        "“",
        "1,",
        "1.",
        "a-",
        "A1",
        "a@",
        "://",
        "id:",
        "$ a\n",
        "git ",
        "漢/",
        "0x",
        "never ",
    ],
)
def test_a_hostile_text_costs_its_length(unit: str) -> None:
    started = time.perf_counter()
    specifics(unit * (200_000 // len(unit)))
    assert time.perf_counter() - started < 60


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("It costs $1,299.00.", "we agreed on $1299.00 then"),
        ("wait 12 ms", "a pause of 12ms"),
        ("Use SRC/Main.py", "it is in src/main.py now"),
        ('the "Dark Theme" file', "called Dark  Theme by them"),
    ],
)
def test_the_same_said_in_another_form_is_told(said: str, told: str) -> None:
    assert all(Told(told).holds(one) for one in specifics(said))


@pytest.mark.parametrize(
    ("said", "told"), [("order 12345", "order 123456"), ("src/a.py", "src/a.pyc"), ("v1.2", "v1.23")]
)
def test_a_piece_of_something_longer_is_not_it(said: str, told: str) -> None:
    assert not any(Told(told).holds(one) for one in specifics(said))
