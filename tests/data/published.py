"""Miniatures of published corpora, in their own layouts."""

# ruff: noqa: RUF001  (letters of full width are tested)

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import soundfile

from brctc.data.corpora.aishell1 import TRANSCRIPT
from tests.data.pairs import write_lines
from tests.data.sounds import noise, write

AISHELL1 = {
    "train/S0002/BAC009S0002W0122": "而 对 楼市 成交 抑制 作用",
    "train/S0002/BAC009S0002W0123": "ｋ 歌 和 ａ 股",
    "train/S0003/BAC009S0003W0121": "ｉ ｐ ｈ ｏ ｎ ｅ 三十 ｇ",
    "dev/S0724/BAC009S0724W0121": "广州市 房地产 中介 协会 分析",
    "test/S0764/BAC009S0764W0121": "甚至 出现 交易 几乎 停滞 的 情况",
}


def write_aishell1(folder: Path, lines: Mapping[str, str] = AISHELL1) -> Path:
    """wav/{train,dev,test}/SPEAKER/*.wav and one transcript."""
    for n, path in enumerate(lines):
        write(folder / "wav" / f"{path}.wav", noise(1 + n / 4, n))
    write_transcript(folder, lines)
    return folder


def write_transcript(folder: Path, lines: Mapping[str, str]) -> None:
    (folder / TRANSCRIPT).parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{path.split('/')[-1]} {text}\n" for path, text in lines.items())
    (folder / TRANSCRIPT).write_text(content, encoding="utf-8")


AISHELL2 = {
    "C0001/IC0001W0001": ("厨房用品", "厨房用品"),
    "C0001/IC0001W0065": ("听Yesterday  Once More", "听YESTERDAY ONCE MORE"),
    "C0002/IC0002W0003": ("请 打开 wifi 和 ＴＶ", "请打开WIFI和TV"),
    "C0010/IC0010W0228": ("Here's", "HERE'S"),
}


def write_set(folder: Path, lines: dict[str, str], between: str = "\t") -> Path:
    for n, path in enumerate(lines):
        write(folder / "wav" / f"{path}.wav", noise(1 + n / 4, n))
    named = {path.split("/")[-1]: text for path, text in lines.items()}
    content = "".join(f"{id}{between}{text}\n" for id, text in reversed(named.items()))
    (folder / "trans.txt").write_text(content, encoding="utf-8")
    return folder


def write_aishell2(
    folder: Path,
    train: Mapping[str, str] | None = None,
    held_out: str = "打开{device}",
) -> Path:
    """Training of iOS, and development and test sets of three devices."""
    write_set(
        folder / "AISHELL-2" / "iOS" / "data", train or {path: text for path, (text, _) in AISHELL2.items()}
    )
    for device in ("iOS", "Android", "Mic"):
        for split in ("dev", "test"):
            below = folder / "AISHELL-DEV-TEST-SET" / device / split
            speaker = f"{split[0].upper()}0012"
            name = f"{speaker}/{device[0].upper()}{speaker}W0001"
            write_set(below, {name: held_out.format(device=device)}, between="  ")
    return folder


YOUTUBE, MEETING = "audio/train/youtube/B00000/Y01.opus", "audio/test_meeting/B00000/T01.opus"
DEV, NET = "audio/dev/podcast/B00000/D01.opus", "audio/test_net/B00000/N01.opus"
RATES = {YOUTUBE: 16000, DEV: 48000, NET: 16000, MEETING: 24000}


def segment(sid: str, start: float, end: float, text: str, *subsets: str) -> dict:
    return {
        "sid": sid, "begin_time": start, "end_time": end, "text": text, "confidence": 1.0,
        "subsets": list(subsets),
    }  # fmt: skip


def audio(path: str, *segments: dict) -> dict:
    return {"aid": Path(path).stem, "duration": 8.0, "path": path, "tags": ["drama"], "segments": segments}


WENETSPEECH = [
    audio(
        YOUTUBE,
        segment("Y01_S0", 0.5, 2.25, "怎么样这些日子", "L", "M", "S"),
        segment("Y01_S1", 2.25, 3.0, "住得 ok 吗", "L", "M"),
        segment("Y01_S2", 3.01, 4.567, "hello ｗｏｒｌｄ", "L"),
        segment("Y01_S3", 5.0, 6.0, "不可信", "W"),
        segment("Y01_S4", 7.2, 8.03, "最后", "L"),  # its end is rounded to after the file's
    ),
    audio(DEV, segment("D01_S0", 1.0, 2.0, "开发", "DEV"), segment("D01_S1", 3.333, 5.1, "开发集", "DEV")),
    audio(NET, segment("N01_S0", 1.0, 2.0, "网络", "TEST_NET")),
    audio(MEETING, segment("T01_S0", 1.0, 2.0, "会议", "TEST_MEETING")),
]


def write_json(folder: Path, audios: Sequence[dict], indent: int | None = 1) -> None:
    content = {"dataset": "WenetSpeech", "language": "ZH", "version": "v1.0", "audios": audios}
    folder.mkdir(exist_ok=True)
    (folder / "WenetSpeech.json").write_text(json.dumps(content, ensure_ascii=False, indent=indent), "utf-8")


def write_wenetspeech(folder: Path, audios: Sequence[dict] = WENETSPEECH) -> Path:
    """One JSON file, and opus files of 8 s."""
    for n, (path, rate) in enumerate(RATES.items()):
        (folder / path).parent.mkdir(parents=True)
        soundfile.write(folder / path, noise(8.0, n, rate), rate, format="OGG", subtype="OPUS")
    write_json(folder, audios)
    return folder


LIBRISPEECH = {
    "train-clean-5": {"1-10": ["THE FIRST LINE", "A SECOND ONE"], "2-20": ["ANOTHER SPEAKER SAYS THIS"]},
    "dev-clean-2": {"3-30": ["SOMETHING TO WATCH"]},
    "test-clean": {"4-40": ["SOMETHING TO TEST WITH", "AND MORE"]},
}


def write_librispeech(folder: Path, parts: Mapping[str, Mapping[str, Sequence[str]]] = LIBRISPEECH) -> Path:
    """Miniature of the published layout: PART/SPEAKER/CHAPTER/SPEAKER-CHAPTER-0000.flac and .trans.txt."""
    for part, chapters in parts.items():
        for chapter, texts in chapters.items():
            below = folder / part / chapter.replace("-", "/")
            lines = []
            for n, text in enumerate(texts):
                id = f"{chapter}-{n:04d}"
                write(below / f"{id}.flac", noise(1 + n, int(chapter[0]) + n))
                lines.append(f"{id} {text}")
            (below / f"{chapter}.trans.txt").write_text("\n".join(lines) + "\n")
    return folder


ENGLISH = ("Hello  there.", "(Applause) So, I said: “no”.", "It's 3.5 &amp; more.", "Thank you.")
GERMAN = ("Hallo.", "(Applaus) Ich sagte also: „Nein“.", "Es sind 3,5 &amp; mehr.", " Danke. ")
PLACES = ((0.25, 1.5), (1.75, 0.9876), (3.0, 2.03), (0.1, 1.0))
TALKS = ("ted_767.wav", "ted_767.wav", "ted_767.wav", "ted_1.wav")
MUST_C_SPLITS = ["train", "dev", "tst-COMMON", "tst-HE"]


def entry(wav: str, start: float, duration: float) -> str:
    speaker = wav.removesuffix(".wav").replace("ted_", "spk.")
    times = f"duration: {duration:.6f}, offset: {start:.6f}"
    return f"- {{{times}, rW: 9, uW: 0, speaker_id: {speaker}, wav: {wav}}}"


def write_talks(folder: Path, german: str = "de") -> None:
    text = folder / "txt" / folder.name
    write_lines(
        Path(f"{text}.yaml"), tuple(entry(wav, *place) for wav, place in zip(TALKS, PLACES, strict=True))
    )
    write_lines(Path(f"{text}.en"), ENGLISH)
    write_lines(Path(f"{text}.{german}"), GERMAN)
    for n, wav in enumerate(sorted({*TALKS})):
        write(folder / "wav" / wav, noise(5.0, n + len(folder.name)))


def write_must_c(folder: Path) -> Path:
    """English talks with their texts and German ones."""
    for split in MUST_C_SPLITS:
        write_talks(folder / "en-de" / "data" / split)
    return folder


_HEAD = (
    "<url>http://www.ted.com/talks/{n}</url>",
    "<keywords>talks, science</keywords>",
    "<speaker>Somebody</speaker>",
    "<talkid>{n}</talkid>",
)
_TAIL = ('<reviewer href="x"></reviewer>', "<translator>Someone</translator>")


def talks(language: str, count: int = 60) -> tuple[str, ...]:
    """One talk of `count` lines."""
    word = {"de": "Satz", "en": "Sentence", "es": "Frase"}[language]
    title = ("<title>{0}: Title &amp; more</title>", "<description>About: {0} things.</description>")
    return (
        *(line.format(n=1) for line in _HEAD),
        *(line.format(word) for line in title),
        *(f"{word} {n} is &quot;here&quot;, isn't it?" for n in range(count)),
        *_TAIL[: 1 if language == "en" else 2],  # tags need not be the same on both sides
    )


def xml_segments(language: str, name: str, count: int = 3) -> tuple[str, ...]:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<mteval><srcset setid="{name}" srclang="german">',
        '<doc docid="1" genre="lectures">',
        "<title>Not a segment</title>",
        *(f'<seg id="{n}"> {language} {name} {n} &lt;b&gt; &amp; c </seg>' for n in range(1, count + 1)),
        "</doc>",
        "</srcset></mteval>",
    )


def write_iwslt14(folder, pair="de-en", tests=("dev2010", "dev2012", "tst2010", "tst2011", "tst2012")):
    for language in pair.split("-"):
        write_lines(folder / f"train.tags.{pair}.{language}", talks(language))
        for name in tests:
            talks_of = "TEDX" if name == "dev2012" else "TED"
            path = folder / f"IWSLT14.{talks_of}.{name}.{pair}.{language}.xml"
            write_lines(path, xml_segments(language, name))
    return folder
