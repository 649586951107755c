"""Rows come out of every format exactly as they went in, and every bad one is named by its place."""

from __future__ import annotations

import errno
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus.csv_records import csv_records, split_fields
from tacit.corpus.rows import BadRowCount
from tacit.corpus.sources import CorpusSource, format_of, iter_rows
from tacit.errors import CorpusError, DownloadFailed

SECRET = "hunter2"
FAITHFUL = [
    "plain",
    " leading and trailing \t",
    "line\nfeed, carriage\r\nreturn, bare\rreturn",
    "separators \u2028 and \u2029, \x0b\x0c\x1c\x85 none of which ends a line",
    "👩🏽‍🚀 e\u0301 é \U0001f600 \ufeff in the middle",
    'quotes " and "" and \\" and commas, too',
    "مرحبا 你好 ｆｕｌｌ",
]


def pairs(source: CorpusSource, **options: Any) -> list[tuple[str, str]]:
    return [(row.user, row.text) for row in iter_rows(source, **options)]


def source_of(path: Path, content: bytes, **columns: Any) -> CorpusSource:
    path.write_bytes(content)
    return CorpusSource(str(path), **({"user": "u", "text": "t"} | columns))


def jsonl(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


GOOD = {"u": "ann", "t": "hello"}
GOOD_LINE = jsonl(GOOD)

BAD_LINES = [
    pytest.param(b'{"u": "ann", "t": "hunter2 \xff"}\n', "not UTF-8", id="not-utf8"),
    pytest.param(b'{"u": "ann", "t": "hunter2"\n', "broken JSON", id="cut-off"),
    pytest.param(b'{"u": "ann", "t": ' + b"[" * 200_000 + b"\n", "broken JSON", id="nesting"),
    pytest.param(b'{"u": ' + b"9" * 5000 + b', "t": "hunter2"}\n', "broken JSON", id="huge-number"),
    pytest.param(b'["ann", "hunter2"]\n', "not an object", id="array"),
    pytest.param(b'{"t": "hunter2"}\n', "missing column", id="no-user-column"),
    pytest.param(b'{"u": "ann", "text": "hunter2"}\n', "missing column", id="no-text-column"),
    pytest.param(b'{"u": null, "t": "hunter2"}\n', "null user", id="null-user"),
    pytest.param(b'{"u": "", "t": "hunter2"}\n', "empty user", id="empty-user"),
    pytest.param(b'{"u": " ", "t": "hunter2"}\n', "empty user", id="blank-user"),
    pytest.param(b'{"u": true, "t": "hunter2"}\n', "user of a wrong type", id="bool-user"),
    pytest.param(b'{"u": 1.0, "t": "hunter2"}\n', "user of a wrong type", id="float-user"),
    pytest.param(b'{"u": ["hunter2"], "t": "hunter2"}\n', "user of a wrong type", id="list-user"),
    pytest.param(b'{"u": "ann", "t": 7}\n', "text of a wrong type", id="number-text"),
    pytest.param(b'{"u": "ann", "t": null}\n', "text of a wrong type", id="null-text"),
    pytest.param(b'{"u": "ann", "t": ""}\n', "empty document", id="empty-text"),
    pytest.param(b'{"u": "ann", "t": " \\n\\u2003"}\n', "empty document", id="blank-text"),
    pytest.param(b'{"u": "ann", "t": "hunter2 \\ud800"}\n', "not UTF-8", id="half-surrogate-text"),
    pytest.param(b'{"u": "\\udfff", "t": "hunter2"}\n', "not UTF-8", id="half-surrogate-user"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_bad_jsonl_line_is_named_and_can_be_skipped(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "corpus.jsonl"
    source = source_of(path, GOOD_LINE + b"\n" + line + GOOD_LINE)
    with pytest.raises(CorpusError) as caught:
        pairs(source)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert "with --skip-bad (skip_bad: true in a recipe)" in str(caught.value)
    assert SECRET not in str(caught.value)
    count = BadRowCount()
    assert pairs(source, on_bad=count) == [("ann", "hello")] * 2
    assert count.by_reason == {reason: 1}


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""], ids=repr)
@pytest.mark.parametrize(
    ("line", "column"),
    [(b'{"u": "ann", "t": ', 19), (b'{"u": "ann"', 12), (b'{"u": "ann", "t": "hunter2', 19)],
)
def test_broken_json_is_named_by_the_column_in_its_line(
    tmp_path: Path, line: bytes, column: int, end: bytes
) -> None:
    source = source_of(tmp_path / "corpus.jsonl", GOOD_LINE + line + end)
    with pytest.raises(CorpusError, match=rf"line 2: broken JSON at column {column} \("):
        pairs(source)


def test_null_is_called_null(tmp_path: Path) -> None:
    source = source_of(tmp_path / "corpus.jsonl", b'{"u": "ann", "t": null}\n')
    with pytest.raises(CorpusError, match="line 1: the text is null; correct it"):
        pairs(source)


BAD_MESSAGES: list[object] = [
    None,
    "text",
    [],
    ["hunter2"],
    [{"content": "hunter2"}],
    [{"role": "", "content": "hunter2"}],
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": [{"type": "text", "text": "hunter2"}]}],
]


@pytest.mark.parametrize("messages", BAD_MESSAGES)
def test_bad_messages_are_named(tmp_path: Path, messages: object) -> None:
    good = [{"role": "user", "content": "hi", "name": "ignored"}, {"role": "bot", "content": "hello"}]
    content = jsonl({"u": 1, "m": good}, {"u": 1, "m": messages})
    source = source_of(tmp_path / "chat.jsonl", content, text=None, messages="m")
    with pytest.raises(CorpusError, match=r"line 2: .*message") as caught:
        pairs(source)
    assert SECRET not in str(caught.value)
    count = BadRowCount()
    assert pairs(source, on_bad=count) == [("1", "user: hi\nbot: hello")]
    assert count.by_reason == {"bad messages": 1}


def test_wholly_missing_column_is_refused_even_when_bad_rows_are_skipped(tmp_path: Path) -> None:
    source = source_of(tmp_path / "corpus.jsonl", jsonl({"who": 1, "t": "a"}, {"who": 2, "t": "b"}))
    with pytest.raises(CorpusError, match=r"line 1: column 'u' is missing \(the row has 'who', 't'\)") as one:
        pairs(source)
    # Leaving out the rows that lack it would leave out all of them.
    assert str(one.value).endswith("; name a column that it has.")
    with pytest.raises(CorpusError, match="no column 'u'; its columns are 't', 'who'"):
        pairs(source, on_bad=BadRowCount())


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_columns_are_never_guessed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"user": ["ann"], "text": ["hello"]}), path)
    else:
        path.write_bytes(b"user,text\nann,hello\n" if suffix == "csv" else jsonl({"user": "a", "text": "b"}))
    with pytest.raises(CorpusError, match="no column was named for the user; name one of 'user', 'text'"):
        pairs(CorpusSource(str(path), text="text"))
    with pytest.raises(CorpusError, match="for the text or the messages; name one of 'user', 'text'"):
        pairs(CorpusSource(str(path), user="user"))
    with pytest.raises(CorpusError, match="'user', 'text'"):
        pairs(CorpusSource(str(path), user="uid", text="text"))
    with pytest.raises(CorpusError, match="would not be read"):
        pairs(CorpusSource(str(path), user="user", text="text"), without_users=True)
    assert len(pairs(CorpusSource(str(path), text="text"), without_users=True)) == 1


def test_many_columns_are_listed_in_part(tmp_path: Path) -> None:
    source = source_of(tmp_path / "corpus.jsonl", jsonl({f"column{n}": n for n in range(30)}))
    with pytest.raises(CorpusError, match="'column19' and 10 more"):
        pairs(source)


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("zipped", [True, False])
def test_jsonl_keeps_every_character(tmp_path: Path, ascii_only: bool, mark: bytes, zipped: bool) -> None:
    lines = [json.dumps({"u": text, "t": text}, ensure_ascii=ascii_only) for text in FAITHFUL]
    content = mark + "\r\n".join(lines).encode()
    path = tmp_path / ("corpus.jsonl.gz" if zipped else "corpus.jsonl")
    source = source_of(path, gzip.compress(content) if zipped else content)
    assert pairs(source) == [(text, text) for text in FAITHFUL]


def csv_field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_keeps_every_character(tmp_path: Path, end: str) -> None:
    lines = ["u,other,t", *(f"{csv_field(text)},,{csv_field(text)}" for text in FAITHFUL)]
    source = source_of(tmp_path / "corpus.csv", b"\xef\xbb\xbf" + end.join(lines).encode())
    assert pairs(source) == [(text, text) for text in FAITHFUL]


def test_csv_field_may_be_large(tmp_path: Path) -> None:
    large = "x" * 1_000_000
    assert pairs(source_of(tmp_path / "corpus.csv", f'u,t\nann,"{large}"\n'.encode())) == [("ann", large)]


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=4), max_size=5),
    st.sampled_from(["\n", "\r\n"]),
)
def test_csv_round_trip(records: list[list[str]], end: str) -> None:
    content = "".join(",".join(map(csv_field, fields)) + end for fields in records).encode()
    assert [split_fields(record.content) for record in csv_records(io.BytesIO(content))] == records


BAD_RECORDS = [
    pytest.param(b'ann,"5"" hunter2" x\n', "broken quoting", 4, id="after-quote"),
    pytest.param(b'ann,5" hunter2\n', "broken quoting", 4, id="stray-quote-must-not-swallow-lines"),
    pytest.param(b"ann,hunter2,3\n", "wrong number of fields", 4, id="too-many"),
    pytest.param(b"hunter2\n", "wrong number of fields", 4, id="too-few"),
    pytest.param(b"ann,hunter2 \xe9\n", "not UTF-8", 4, id="latin-1"),
    pytest.param(b'ann,"two\nlines \xe9"\n', "not UTF-8", 5, id="latin-1-on-the-second-line"),
    pytest.param(b",hunter2\n", "empty user", 4, id="empty-user"),
    pytest.param(b"ann,\n", "empty document", 4, id="empty-text"),
]


@pytest.mark.parametrize(("record", "reason", "line"), BAD_RECORDS)
def test_bad_csv_record_is_named_and_can_be_skipped(
    tmp_path: Path, record: bytes, reason: str, line: int
) -> None:
    path = tmp_path / "corpus.csv"
    source = source_of(path, b'u,t\nann,"one\ntwo"\n' + record + b"bob,hi\n")
    with pytest.raises(CorpusError) as caught:
        pairs(source)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert SECRET not in str(caught.value)
    count = BadRowCount()
    assert pairs(source, on_bad=count) == [("ann", "one\ntwo"), ("bob", "hi")]
    assert count.by_reason == {reason: 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'u,t\nann,hi\nbob,"never\nends\nann,x\n', "line 3: a quote opens and never closes"),
        (b"u,t,u\na,b,c\n", "more than one column 'u'"),
        (b"u,\xff\na,b\n", "line 1: the header is unusable, byte 0xff"),
        (b"\n\n", "has no header"),
    ],
)
def test_unusable_csv_is_refused_even_when_bad_rows_are_skipped(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(CorpusError, match=message):
        pairs(source_of(tmp_path / "corpus.csv", content), on_bad=BadRowCount())


def test_csv_cannot_hold_messages(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="JSONL or Parquet"):
        pairs(source_of(tmp_path / "corpus.csv", b"u,t\n1,2\n", text=None, messages="t"))


def test_parquet_rows_are_named_by_number(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    rows: list[dict[str, object]] = [{"u": 7, "t": text} for text in FAITHFUL]
    pq.write_table(pa.Table.from_pylist([*rows, {"u": None, "t": "x"}, {"u": 8, "t": " "}]), path)
    source = CorpusSource(str(path), user="u", text="t")
    with pytest.raises(CorpusError, match=f"corpus.parquet, row {len(rows) + 1}: the user is null"):
        pairs(source)
    count = BadRowCount()
    assert pairs(source, on_bad=count) == [("7", text) for text in FAITHFUL]
    assert count.by_reason == {"null user": 1, "empty document": 1}


def test_parquet_strings_that_are_not_utf8_are_found(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    texts = pa.array([b"good", b"\xff\xfe", b"good"], pa.binary())
    lying = pa.Array.from_buffers(pa.string(), len(texts), texts.buffers())
    pq.write_table(pa.table({"u": ["a", "b", "c"], "t": lying}), path)
    source = CorpusSource(str(path), user="u", text="t")
    with pytest.raises(CorpusError, match="row 2: the text is not UTF-8"):
        pairs(source)
    assert pairs(source, on_bad=BadRowCount()) == [("a", "good"), ("c", "good")]


def test_parquet_messages_and_damage(tmp_path: Path) -> None:
    path = tmp_path / "chat.parquet"
    messages = [[{"role": "user", "content": "hi"}], [{"role": "user", "content": None}]]
    pq.write_table(pa.table({"u": ["a", "b"], "m": messages}), path)
    source = CorpusSource(str(path), user="u", messages="m")
    assert pairs(source, on_bad=BadRowCount(), render=lambda turns: f"<{turns[0]['content']}>") == [
        ("a", "<hi>")
    ]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorpusError, match="cannot be read as Parquet"):
        pairs(source)


def test_text_folder_makes_each_file_a_user(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfbee\r\n")
    (tmp_path / "deep" / "a").write_text("deep a")
    (tmp_path / ".hidden").write_text("not read")
    source = CorpusSource(str(tmp_path), user="file")
    assert format_of(source) == "text"
    assert pairs(source) == [("b.txt", "bee\r\n"), ("deep/a", "deep a")]
    assert pairs(CorpusSource(str(tmp_path)), without_users=True) == [("", "bee\r\n"), ("", "deep a")]
    assert pairs(CorpusSource(str(tmp_path / "b.txt"), user="file")) == [("b.txt", "bee\r\n")]


def test_text_documents_are_files_paragraphs_or_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n one\ntwo\u2028x\n\n \n\nthree\n", newline="")

    def texts(**options: Any) -> list[tuple[str, str]]:
        rows = iter_rows(CorpusSource(str(path), user="file", **options))
        return [(row.text, row.where.removeprefix(f"{path}, ")) for row in rows]

    assert texts() == [(path.read_text(), "line 1")]
    assert texts(document="paragraph") == [(" one\ntwo\u2028x", "line 2"), ("three", "line 7")]
    assert texts(document="line") == [(" one", "line 2"), ("two\u2028x", "line 3"), ("three", "line 7")]


@pytest.mark.parametrize(
    ("document", "kept"), [("file", []), ("paragraph", ["end"]), ("line", ["one", "end"])]
)
def test_text_that_is_not_utf8_is_named_by_line(tmp_path: Path, document: Any, kept: list[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\nt\xffo\n\nend\n")
    source = CorpusSource(str(path), user="file", document=document)
    with pytest.raises(CorpusError, match=r"a\.txt, line 2: byte 0xff is not UTF-8"):
        pairs(source)
    assert [text for _, text in pairs(source, on_bad=BadRowCount())] == kept


@pytest.mark.parametrize("document", ["file", "paragraph", "line"])
def test_blank_text_file_is_an_empty_document(tmp_path: Path, document: Any) -> None:
    (tmp_path / "a.txt").write_text("\n \n")
    (tmp_path / "b.txt").write_text("")
    count = BadRowCount()
    assert pairs(CorpusSource(str(tmp_path), user="file", document=document), on_bad=count) == []
    assert count.by_reason == {"empty document": 2}


@pytest.mark.parametrize("columns", [{"user": "name"}, {"user": "file", "text": "t"}, {}])
def test_text_has_no_columns(tmp_path: Path, columns: dict[str, Any]) -> None:
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(CorpusError, match="text files have no"):
        pairs(CorpusSource(str(tmp_path), **columns))


@pytest.mark.parametrize(
    "name", ["missing.jsonl", "empty.jsonl", "folder.jsonl", "corpus.json", "empty-folder"]
)
def test_unusable_path_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "corpus.json").write_text("[]")
    (tmp_path / "empty-folder").mkdir()
    source = CorpusSource(str(tmp_path / name), "jsonl" if name == "folder.jsonl" else "auto", "file")
    with pytest.raises(CorpusError, match=name):
        pairs(source)


def test_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    source = source_of(tmp_path / "corpus.jsonl", GOOD_LINE)
    # A fault, because file modes do not stop the superuser, as whom tests often run.
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(CorpusError, match=r"corpus.jsonl cannot be read \(Permission denied\)"):
        pairs(source)


@pytest.mark.parametrize("damage", [lambda zipped: zipped[:-9], lambda zipped: b"not gzip"])
def test_damaged_gzip_is_refused(tmp_path: Path, damage: Any) -> None:
    source = source_of(tmp_path / "corpus.jsonl.gz", damage(gzip.compress(GOOD_LINE * 50)))
    with pytest.raises(CorpusError, match="cannot be read"):
        pairs(source)


@pytest.mark.parametrize("wrong", [{"format": "xml"}, {"document": "page"}, {"text": "a", "messages": "b"}])
def test_contradictory_source_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CorpusError):
        CorpusSource("corpus", **wrong)


@pytest.mark.parametrize("option", ["split", "config", "revision", "document"])
def test_what_does_not_apply_is_refused(tmp_path: Path, option: str) -> None:
    value = "line" if option == "document" else "train"
    source = source_of(tmp_path / "corpus.jsonl", GOOD_LINE, **{option: value})
    with pytest.raises(CorpusError, match=f"{option}.*, and this is jsonl; leave it out"):
        pairs(source)


def test_rows_of_jsonl_and_csv_come_with_all_their_columns(tmp_path: Path) -> None:
    (row,) = iter_rows(source_of(tmp_path / "c.jsonl", jsonl({"u": 7, "t": "hi", "x": [1, None]})))
    assert (row.user, row.record) == ("7", {"u": 7, "t": "hi", "x": [1, None]})
    (row,) = iter_rows(source_of(tmp_path / "c.csv", b"u,x,t\nann,3,hi\n"))
    assert row.record == {"u": "ann", "x": "3", "t": "hi"}
    (tmp_path / "c.txt").write_text("hi")
    (row,) = iter_rows(CorpusSource(str(tmp_path / "c.txt"), user="file"))
    assert row.record is None


def test_progress_adds_up_to_the_file(tmp_path: Path) -> None:
    source = source_of(tmp_path / "corpus.jsonl", jsonl({"u": 1, "t": "x" * 1000}) * 3000)
    increments: list[int] = []
    assert len(pairs(source, advance=increments.append)) == 3000
    assert sum(increments) == Path(source.path).stat().st_size
    assert len(increments) > 2


def test_saved_datasets(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_dict({"u": ["a", "b"], "t": ["one", None], "x": [1, 2]})
    data.save_to_disk(str(tmp_path / "plain"))
    datasets.DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(str(tmp_path / "splits"))
    count = BadRowCount()
    assert pairs(CorpusSource(str(tmp_path / "plain"), user="u", text="t"), on_bad=count) == [("a", "one")]
    assert count.by_reason == {"text of a wrong type": 1}
    splits = str(tmp_path / "splits")
    assert pairs(CorpusSource(splits, user="u", text="t", split="test")) == [("a", "one")]
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"split": None}, "splits: 'train', 'test'"),
        ({"split": "dev"}, "splits: 'train', 'test'"),
        ({"split": "test", "user": "who"}, "its columns are 'u', 't', 'x'"),
        ({"split": "test", "revision": "main"}, "Hugging Face id"),
    ]
    for wrong, message in mistakes:
        with pytest.raises(CorpusError, match=message):
            pairs(CorpusSource(splits, **({"user": "u", "text": "t"} | wrong)))
    with pytest.raises(CorpusError, match="no splits"):
        pairs(CorpusSource(str(tmp_path / "plain"), user="u", text="t", split="train"))
    (tmp_path / "plain" / "state.json").write_text("{")
    with pytest.raises(CorpusError, match="cannot be read as a saved dataset"):
        pairs(CorpusSource(str(tmp_path / "plain"), user="u", text="t"))


def test_hub_that_does_not_deliver(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert datasets.config.HF_HUB_OFFLINE
    with pytest.raises(DownloadFailed, match="save_to_disk"):
        pairs(CorpusSource("nobody/nothing", "datasets", user="u", text="t"))


def test_bare_dataset_name_is_not_a_loader() -> None:
    # datasets.load_dataset("json") would read whatever lies in the working directory.
    with pytest.raises(CorpusError, match="owner/name"):
        pairs(CorpusSource("json", "datasets", user="u", text="t"))
