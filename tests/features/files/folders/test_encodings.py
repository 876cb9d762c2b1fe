"""Texts in older encodings are read correctly, and the file names the chosen encoding."""

import random

import pytest

from ricordo.features.files.folders.encodings import guess, wide_encoding
from ricordo.features.files.folders.texts import is_readable
from tests.api.conftest import Api
from tests.features.files.folders.conftest import put

GBK_CSV = b"\xd0\xd5\xc3\xfb,\xb3\xc7\xca\xd0\n\xcd\xf5\xb7\xbc,\xb1\xb1\xbe\xa9\n"
# Words in each encoding's languages, as rows of a table or lines of a text contain them.
WORDS = {
    "gb18030": "姓名 城市 李明 北京 王芳 上海 学生 成绩 课程 数学 语文 老师 学校 日期 价格 苹果 电话 地址 问题 答案",
    "big5": "姓名 城市 陳大文 台北 林小美 高雄 學生 成績 課程 數學 國語 老師 學校 日期 價格 蘋果 電話 地址 問題 答案",
    "cp932": "名前 都市 田中太郎 東京 これは日本語です テスト データ 学校の教科書 商品名 りんご 質問と答え 今日は学校へ行きます",
    "euc_jp": "これは日本語です テストのデータ 学校の教科書 りんごとみかん 質問と答え 今日は学校へ行きます",
    "cp949": "이름 도시 김철수 서울 이영희 부산 학생 성적 과목 수학 국어 선생님 학교 날짜 가격 사과 전화번호 질문 대답",
    "koi8_r": "Имя Город Иван Москва Мария Казань учебный материал для школы привет мир Товар Цена "
    "Яблоко вопрос ответ урок",
    "cp1251": "Имя Город Иван Москва Мария Казань учебный материал для школы привет мир Товар Цена "
    "Яблоко вопрос ответ урок",
    "cp1252": "Jörg Müller Köln René Zürich Größe Straße Übung Ärger Très élève école niño français "
    "Märchen Prüfung Schüler",
    "iso8859_2": "Imię Miasto Łukasz Żółć Łódź Željko Čačić Šibenik uczniów żluťoučký kůň úpěl gęślą jaźń "
    "tükörfúrógép Příliš",
    "cp1253": "Όνομα Πόλη Γιώργος Αθήνα Αυτό είναι ένα κείμενο σχολείο μαθητής ερώτηση απάντηση μάθημα "
    "βιβλίο",
    "utf-16-le": "Name City Ada Turin 姓名 城市 Имя Город Größe école 名前 이름",
    "utf-16-be": "Name City Ada Turin 姓名 城市 Имя Город Größe école 名前 이름",
}
TABLES = ((";", "\r\n"), (",", "\n"), ("\t", "\n"), (" ", ".\n"))


def text_of(words: list[str], chance: random.Random) -> str:
    """Return lines of these words, with numbers between them."""
    sign, end = chance.choice(TABLES)
    lines = []
    for number in range(chance.randrange(4, 12)):
        lines.append(sign.join([*chance.choices(words, k=3), str(chance.randrange(100))]) + end)
        assert number < 12
    return "".join(lines)


@pytest.mark.parametrize("encoding", WORDS)
def test_texts_of_each_encoding_are_decoded(encoding: str) -> None:
    chance = random.Random(9)  # noqa: S311
    wrong = []
    for _ in range(30):
        text = text_of(WORDS[encoding].split(), chance)
        data = text.encode(encoding)
        assert is_readable("table.csv", data)
        name = wide_encoding(data) or guess(data).name
        if data.decode(name, "replace") != text:
            wrong.append((name, text))
    assert len(wrong) <= 1, wrong


@pytest.mark.parametrize("encoding", ["gb18030", "big5", "cp932", "euc_jp", "cp949"])
def test_a_long_text_without_line_ends_is_decoded_wherever_its_sample_ends(encoding: str) -> None:
    words = "".join(WORDS[encoding].split())
    for before in ("", "x", "xy", "xyz"):
        text = before + words * 400
        name = guess(text.encode(encoding)).name
        assert text.encode(encoding).decode(name, "replace") == text, (name, before)


def test_a_chinese_csv_file_is_decoded_and_its_type_names_the_encoding(
    api: Api, folder: str
) -> None:
    file = put(api, folder, "名单.csv", GBK_CSV)
    whole = api.client.folders.files.retrieve(file.id, folder_id=folder, include_content=True)
    assert whole.content == "姓名,城市\n王芳,北京\n"
    assert (whole.processing_status, whole.file_type) == ("completed", "text/csv; charset=gb18030")
    plain = put(api, folder, "plain.csv", "Größe,7\n")
    assert (plain.file_type, plain.error_message) == ("text/csv", None)


def test_an_ambiguous_encoding_is_noted_on_the_file(api: Api, folder: str) -> None:
    file = put(api, folder, "short.txt", "äö\n".encode("cp1252"))
    assert file.processing_status == "completed"
    assert "was read as" in (file.error_message or "")
    assert "save it as UTF-8" in (file.error_message or "")


def test_random_bytes_are_not_taken_for_text() -> None:
    chance = random.Random(4)  # noqa: S311
    for _ in range(50):
        noise = chance.randbytes(400)
        assert not is_readable("x.bin", noise), noise


def test_a_file_that_is_rtf_by_name_only_is_refused(api: Api, folder: str) -> None:
    file = put(api, folder, "wrong.rtf", b"Just words.")
    assert file.processing_status == "error"
    assert "does not begin like an RTF file" in (file.error_message or "")
