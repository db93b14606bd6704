"""What the corpora of Mandarin have in common: how their texts are written, and archives of speakers."""

import re
import string
from pathlib import Path

from brctc.data.corpora.pairs import one_line

_CHINESE = "[\u3007\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_BESIDE_CHINESE = re.compile(rf"(?<={_CHINESE}) | (?={_CHINESE})")
_FULL_WIDTH = {0xFEE0 + ord(usual): usual for usual in string.digits + string.ascii_letters}


def mandarin(text: str) -> str:
    """Upper case in letters of usual width; spaces are left between Latin words only."""
    return _BESIDE_CHINESE.sub("", one_line(text.translate(_FULL_WIDTH)).upper())


def check_unpacked(wav: Path) -> None:
    """Refuses archives of speakers that have no folder, beside them or in a folder beside them."""
    archives = sorted(wav.glob("*.tar.gz"))
    if not archives:
        return
    folders = {path.name for pattern in ("*", "*/*") for path in wav.glob(pattern) if path.is_dir()}
    packed = [path.name for path in archives if path.name.removesuffix(".tar.gz") not in folders]
    if packed:
        raise ValueError(
            f"{wav}: {len(packed)} of {len(archives)} archives are not unpacked, {packed[0]} first: unpack "
            "each of them there, as with tar -xzf"
        )
