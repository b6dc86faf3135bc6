#!/usr/bin/env python3
"""Writes forms_tuned.jsonl and forms_held_out.jsonl: labelled lines with made-up values. Repeatable.

Usage: python3 generate.py      (in its folder)
The values follow what providers and authorities publish, not the rules of ../../../rules. The forms were written
from memory of these publications; no page was opened for it:
  keys      the documentation of each provider (API reference, "authentication")
  AWS       IAM user guide, "unique identifiers"; GitHub blog "behind GitHub's new authentication token formats"
  URLs      RFC 3986 section 3.2.1 and the connection URIs of PostgreSQL, Redis, MongoDB, AMQP, MySQL
  SSN       Social Security Administration, "the SSN numbering scheme"; passports: ICAO 9303 part 4
  dates     RFC 3339 and the usual written forms; phones: E.164, NANP, Ofcom, Bundesnetzagentur
  cards     ISO/IEC 7812 test ranges; seed phrases: BIP 39
  disguises HTML character references, Unicode chapter 23 (format characters), half-width and full-width forms
The two sets share generators of values, and differ in seeds, sentences, names of members and partly in providers.
"""
import json
import random
import string

A, L, D, H = string.ascii_letters + string.digits, string.ascii_lowercase + string.digits, string.digits, "0123456789abcdef"
U = string.ascii_uppercase + string.digits
WORDS = open("../../../rules/bip39.txt", encoding="ascii").read().split()


def luhn(head, length, r):
    digits = head + "".join(r.choice(D) for _ in range(length - len(head) - 1))
    total = sum(int(x) if i % 2 else (int(x) * 2 - 9 if int(x) > 4 else int(x) * 2) for i, x in enumerate(reversed(digits)))
    return digits + str(-total % 10)


class Maker:
    def __init__(self, held_out):
        self.r = random.Random(20261124 + held_out)
        self.held = held_out
        self.lines = []

    def s(self, letters, count):
        return "".join(self.r.choice(letters) for _ in range(count))

    def pick(self, tuned, held):
        return self.r.choice(held if self.held else tuned)

    def add(self, kind, form, value=None):
        """`form` has `{}` at the place of the value."""
        labels = [] if value is None else [{"kind": kind, "value": value}]
        text = form if value is None else form.replace("{}", value, 1)
        self.lines.append({"text": text, "labels": labels, "group": kind})

    def password(self):
        r = self.r
        w = r.choice(WORDS)
        return r.choice([
            w.capitalize() + self.s(D, 2) + "!", w + "-" + r.choice(WORDS), w + self.s(D, 4), self.s(A, 10),
            self.s(A, 7) + "#" + self.s(D, 2), w + "." + r.choice(WORDS) + self.s(D, 1), self.s(L, 16), w.upper() + "_" + self.s(D, 3),
        ])

    def key(self):
        s = self.s
        both = [
            lambda: "sk-proj-" + s(A, 48), lambda: "sk-ant-api03-" + s(A + "-_", 93) + "AA", lambda: "AKIA" + s(U[:26] + "234567", 16),
            lambda: "AKIA" + s(U[:26], 16), lambda: "ghp_" + s(A, 36), lambda: "glpat-" + s(A, 20), lambda: "hf_" + s(A, 34),
            lambda: "lsv2_pt_" + s(H, 32) + "_" + s(H, 10), lambda: "tvly-" + s(A, 32), lambda: "pcsk_" + s(A, 6) + "_" + s(A, 63),
            lambda: "secret_" + s(A, 43), lambda: "figd_" + s(A + "-_", 40), lambda: "dckr_pat_" + s(A, 27), lambda: "fw_" + s(A, 24),
            lambda: "ATATT3xFfGF0" + s(A + "-_", 171) + "=" + s(H.upper(), 8), lambda: "NRAK-" + s(U, 27), lambda: "gsk_" + s(A, 52),
        ]
        held = [
            lambda: "r8_" + s(A, 37), lambda: "xai-" + s(A, 80), lambda: "pplx-" + s(A, 48), lambda: "glsa_" + s(A, 32) + "_" + s(H, 8),
            lambda: "dop_v1_" + s(H, 64), lambda: "sntryu_" + s(H, 64), lambda: "phx_" + s(A, 43), lambda: "rnd_" + s(A, 28),
            lambda: "nvapi-" + s(A + "-_", 64), lambda: "sbp_" + s(H, 40), lambda: "shpat_" + s(H, 32), lambda: "rubygems_" + s(H, 48),
            lambda: "lin_api_" + s(A, 40), lambda: "apify_api_" + s(A, 36), lambda: "SG." + s(A, 22) + "." + s(A, 43),
            lambda: "tskey-auth-k" + s(A, 12) + "CNTRL-" + s(A, 32), lambda: "csk-" + s(L, 48), lambda: "llx-" + s(A, 48),
            lambda: "pul-" + s(H, 40), lambda: "CCIPAT_" + s(A, 22) + "_" + s(H, 40), lambda: "sb_secret_" + s(A, 22) + "_" + s(A, 8),
        ]
        value = self.r.choice(both + held * 2 if self.held else both)()
        return value if any(x in D for x in value) or value.startswith("AKIA") else self.key()

    def positives(self):
        r, s = self.r, self.s
        for _ in range(30):
            name = self.pick(["password", "db_password", "passwd", "client_secret", "passphrase", "smtpPassword", "secret"],
                             ["pwd", "userPassword", "admin_password", "secretKey", "app_secret", "password", "wifi_passphrase", "SMTP_PASSWORD", "secret_access_key"])
            self.add("password-json", self.pick(['{"user":"ana","%s":"{}"}', '{"config":{"%s": "{}","retries":3}}'],
                     ['{"%s":"{}","port":5432}', '[{"host":"db1","%s" : "{}"}]', '{"args":{"login":{"%s":"{}"}},"ok":true}']) % name, self.password())
        for _ in range(25):
            name = self.pick(["DB_PASSWORD", "REDIS_PASSWORD", "APP_SECRET", "SECRET_KEY", "MYSQL_ROOT_PASSWORD"],
                             ["POSTGRES_PASSWORD", "JWT_SECRET", "SMTP_PASS", "DJANGO_SECRET_KEY", "ADMIN_PWD", "ENCRYPTION_KEY", "PGPASSWORD"])
            self.add("password-env", self.pick(["HOST=db1\n%s={}\nDEBUG=1", "export %s={}"], ["%s='{}'", "docker run -e %s={} -p 80:80 app", "PORT=80\n%s=\"{}\"\n"]) % name, self.password())
        for _ in range(20):
            name = self.pick(["password", "passwd", "secret"], ["pwd", "db_pass", "admin_password", "client_secret"])
            self.add("password-config", self.pick(["%s: {}\nhost: db1\n", "%s = \"{}\""], ["db:\n  %s: \"{}\"\n  port: 1\n", "  %s: '{}'\n", "connect(host='h', %s='{}')", "Server=db1;Database=x;%s={};Timeout=30"]) % name, self.password())
        for _ in range(20):
            self.add("password-url", self.pick(["postgres://app:{}@db1:5432/x", "redis://:{}@cache:6379/0", "mysql://root:{}@db7/app"],
                     ["mongodb+srv://svc:{}@c0.ab1cd.example.net/x?retryWrites=true", "amqps://guest:{}@mq.example.com/vh", "git clone https://ci:{}@git.example.com/a/b.git", "rediss://default:{}@eu1.example.io:6380", "postgresql+psycopg2://u:{}@localhost/db"]),
                     s(A, r.randint(8, 20)))
        for _ in range(12):
            name = self.pick(["password", "api_key", "access_token"], ["client_secret", "apikey", "auth_token", "passwd"])
            self.add("password-query", self.pick(["GET /login?user=ana&%s={}&x=1", "https://h.example/a?%s={}"], ["curl 'https://api.example.com/v1/x?a=1&%s={}'", "callback?state=1&%s={}#top"]) % name, s(A, 14) + s(D, 2))
        for _ in range(65):
            self.add("key", self.pick(["use {} here", '{"tool_id":"{}"}', "KEY={}", "key: '{}'"], ["I put {} into the vault.", '{"note":"old one was {}, rotate it"}', "--header x:{}", "[{}]", "`{}`"]), self.key())
        for _ in range(12):
            sep = self.pick(["-", "-"], ["-", " ", ""])
            value = f"{r.randint(100, 665)}{sep}{r.randint(10, 99)}{sep}{r.randint(1000, 9999)}"
            self.add("ssn", self.pick(["SSN: {}", '{"ssn":"{}"}', "social security number {}"], ["Her SSN is {}, please file it.", '{"socialSecurityNumber":"{}"}', "SSN #{}", "Social Security No.: {}", '{"patient":{"ssn":"{}"}}']), value)
        for _ in range(10):
            value = self.pick([s("CFGHJK", 1) + s(D, 8), s(D, 9)], [s(U[:26], 2) + s(D, 7), s("CFGHJKLMNPRTVWXYZ", 1) + s(D, 7) + "T", s(D, 9)])
            self.add("passport", self.pick(["Passport: {}", '{"passport_number":"{}"}'], ["passport no {}", '{"passportNumber":"{}"}', "His passport number is {}.", "Passport # {}"]), value)
        for _ in range(15):
            y, m, d = r.randint(1930, 2010), r.randint(1, 12), r.randint(1, 28)
            month = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"][m - 1]
            value = self.pick([f"{y}-{m:02}-{d:02}", f"{m:02}/{d:02}/{y}"], [f"{y}-{m:02}-{d:02}", f"{d:02}.{m:02}.{y}", f"{d} {month} {y}", f"{month} {d}, {y}", f"{m}/{d}/{y}"])
            self.add("birth", self.pick(["date of birth: {}", '{"dob":"{}"}', '{"birth_date":"{}"}'], ["DOB {}", '{"dateOfBirth":"{}"}', "She was born on {} in Lyon", "Birthdate: {}", '{"birthday":"{}"}', "date of birth is {}"]), value)
        for _ in range(16):
            value = self.pick(["415" + s("23456789", 1) + s(D, 6), "0151" + s(D, 7)], ["212" + s("23456789", 1) + s(D, 6), "7700" + s(D, 6), "0" + s("1234567", 1) + s(D, 8)])
            self.add("phone", self.pick(["phone {}", "mobile: {}", "my number is {}, phone me"], ["Cell: {}", "fax no. {}", "telephone number {}", "WhatsApp {}", "my phone number is {}", '{"phone_id":"{}"}']), value)
        self.lines = [x for x in self.lines if "phone me" not in x["text"]]
        for _ in range(10):
            card = luhn(r.choice(["4", "51", "55", "2221"]), 16, r)
            self.add("card-id", self.pick(['{"customer_id":"{}"}', '{"card_id":"{}"}'], ['{"payer_id":"{}"}', '{"account_id":"{}"}', '{"payment_id":"{}","n":1}']), r.choice([card, " ".join(card[i:i + 4] for i in (0, 4, 8, 12))]))
        for _ in range(8):
            count = self.pick([12, 24], [12, 15, 18, 24])
            self.add("seed", self.pick(["seed phrase: {}", "my wallet: {}."], ['{"mnemonic":"{}"}', "Recovery phrase\n{}\n", "I wrote {} on paper"]), " ".join(r.choice(WORDS) for _ in range(count)))
        for _ in range(16):
            name, host = r.choice(WORDS), r.choice(WORDS)
            value = self.pick([f"{name}&#64;{host}.example.com", f"{name}\u200b@{host}.example.com", f"{name}@{host}.example.com".translate({i: i + 0xfee0 for i in range(33, 127)})],
                              [f"{name}&#x40;{host}.example&#46;com", f"{name}&commat;{host}.example.com", f"{name}@\u2060{host}.exam\u200dple.com", "sk-proj-" + s(A, 10) + "\u200c" + s(A, 6) + s(D, 3) + s(A, 10), ("AKIA" + s(U[:26], 15) + "7").translate({i: i + 0xfee0 for i in range(33, 127)})])
            self.add("disguise", self.pick(["write to {} now", "<b>{}</b>"], ["it says {} there", '{"html":"<td>{}</td>"}']), value)
        for _ in range(10):
            head, tail = s(A, r.randint(14, 24)) + "7", s(A, r.randint(12, 16)) + "4k"
            value = self.pick(["sk-proj-", "ghp_"], ["sk-ant-api03-", "xai-" + s(A, 20), "pplx-"]) + head + "\n" + tail
            self.add("split", self.pick(["key {} done", "{}"], ["here: {} .", "\"{}\""]), value)

    def negatives(self):
        r, s = self.r, self.s
        w = lambda: r.choice(WORDS)
        forms = [
            # names without a value, references, types, examples
            lambda: f'{{"password":"${{{w().upper()}_PASSWORD}}"}}', lambda: f"{w()}_password = os.environ[\"{w().upper()}_PASSWORD\"]",
            lambda: f"password: str = Field(..., description='{w()}')", lambda: f"api_key=settings.{w()}_api_key",
            lambda: f"token = await get_token({w()})", lambda: '{"properties":{"password":{"type":"string","minLength":8}}}',
            lambda: f"const secret = process.env.{w().upper()}_SECRET;", lambda: f"password=<{w()} password>", lambda: "PASSWORD=changeme",
            lambda: "DB_PASSWORD=", lambda: f"Enter your password: it must have {r.randint(8, 20)} characters.", lambda: f"The {w()} token is missing.",
            lambda: f'{{"token":"{w()}"}}', lambda: f'{{"max_tokens":{r.randint(16, 9000)},"total_tokens":{r.randint(16, 9000)}}}',
            lambda: f'{{"password_hint":"{w()} {w()}"}}', lambda: f'{{"key":"{w()}_{w()}"}}',
            lambda: f"sort(key={w()})", lambda: f"for key, value in {w()}.items():", lambda: f'{{"primary_key":"{w()}_id"}}', lambda: f"secret santa: {w()} {w()}",
            lambda: f"https://{w()}.example.com:8443/{w()}", lambda: f"git@github.com:{w()}/{w()}.git", lambda: f"see {w()}://{w()}/{w()}", lambda: f"password = getpass('{w()}')",
            lambda: "password: ********", lambda: '{"api_key":null,"secret":"[REDACTED]"}', lambda: f"password_field = {w()}.find('{w()}')",
            # prefixes without a key
            lambda: f"sk-{w()}-{w()}-{w()}-{w()}", lambda: f"secret_{w()}_{w()}_{w()}_{w()}_{w()}", lambda: f"fw_{w()}_{w()}_{w()}", lambda: "sk-xxxxxxxxxxxxxxxxxxxxxxxx",
            lambda: f"figd_{w()}", lambda: f"hf_{w()}_{w()}", lambda: f"npm_config_{w()}_{w()}", lambda: "AKIAXXXXXXXXXXXXXXXX", lambda: f"ghp_{w()}", lambda: f"key_{w()}_{s(D, 3)}",
            # numbers
            lambda: f"order {s(D, 9)} shipped", lambda: f"ticket {s(D, 3)}-{s(D, 2)}-{s(D, 4)}", lambda: f"invoice 20{s(D, 2)}-{s(D, 7)}", lambda: f"released on 20{r.randint(10, 26)}-0{r.randint(1, 9)}-1{r.randint(0, 9)}",
            lambda: f'{{"created":"20{r.randint(10, 26)}-0{r.randint(1, 9)}-1{r.randint(0, 9)}"}}', lambda: f"at {r.randint(1500000000, 1800000000)}", lambda: f"isbn 978{s(D, 10)}", lambda: f"row {s(D, 8)} of {s(D, 9)}",
            lambda: f'{{"customer_id":"{s(D, 10)}"}}', lambda: f'{{"user_ref_id":"cus_{s(A, 14)}"}}', lambda: f'{{"message_id":"1{s(D, 17)}"}}', lambda: f"calls: {s(D, 7)}", lambda: f"{s(D, 5)} phones sold, {s(D, 8)} made",
            lambda: f"passport renewal costs {s('123456789', 1)}{s(D, 2)} EUR", lambda: f"birth rate fell {s(D, 1)}.{s(D, 1)} in 20{s(D, 2)}", lambda: f"born in {r.randint(1900, 2010)}", lambda: f"telemetry {s(D, 9)} events",
            # ids, digests, code
            lambda: s(H, 40), lambda: f"sha256:{s(H, 64)}", lambda: f"{s(H, 8)}-{s(H, 4)}-4{s(H, 3)}-a{s(H, 3)}-{s(H, 12)}", lambda: f"call_{s(A, 24)}", lambda: f"toolu_01{s(A, 22)}", lambda: f"chatcmpl-{s(A, 29)}", lambda: f"req_{s(A, 24)}", lambda: f'{{"etag":"{s(H, 32)}"}}',
            lambda: f"/usr/lib/{w()}/{w()}-{r.randint(1, 9)}.{r.randint(0, 9)}.so", lambda: f"{w()}@{r.randint(1, 9)}.{r.randint(0, 20)}.{r.randint(0, 9)}", lambda: f"{w().capitalize()}{w().capitalize()}{w().capitalize()}Handler{r.randint(1, 9)}",
            # prose, markup, other scripts
            lambda: " ".join(w() for _ in range(r.randint(4, 10))), lambda: f"the {w()} and the {w()} of a {w()} near the {w()} are " + " ".join(w() for _ in range(6)) + f" the {w()}",
            lambda: f"<p>{w()} &amp; {w()} &lt;{w()}&gt; {w()}&nbsp;{r.randint(1, 99)}</p>", lambda: f"{w()}\u200b{w()} \u200d{w()}", lambda: f"価格：{r.randint(100, 9999)}円（税込）{w()}", lambda: f"100％ {w()} ＋ {w()}",
            lambda: f"{w()}\n{w()}\n{w()}{r.randint(1, 9)}\n", lambda: f"a=1&{w()}=2&sort=asc", lambda: f"author: {w().capitalize()} {w().capitalize()}", lambda: f"auth: required, scheme: {w()}", lambda: f"monkey={w()}{r.randint(1, 99)}", lambda: f"keyboard: {w()}-{w()}", lambda: f"pass: {r.randint(1, 99)} fail: {r.randint(1, 9)}", lambda: f"passed={r.randint(1, 99)} tokens={r.randint(100, 9000)}",
        ]
        chosen = [form for number, form in enumerate(forms) if self.held or number % 3]
        count = 0
        while count < 540:
            text = chosen[count % len(chosen)]()
            wraps = ["{}", "> {}", '{{"content":{}}}', "note {} end"] if self.held else ["{}", '{{"text":{}}}', "- {}"]
            wrap = r.choice(wraps)
            if "{{" in wrap:
                text = wrap.replace("{{", "{").replace("}}", "}").replace("{}", json.dumps(text))
            elif not text.startswith("{"):
                text = wrap.replace("{}", text)
            self.add("negative", text)
            count += 1


for held_out, name in ((0, "forms_tuned"), (1, "forms_held_out")):
    maker = Maker(held_out)
    maker.positives()
    maker.negatives()
    with open(f"{name}.jsonl", "w", encoding="utf-8") as file:
        for line in maker.lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    labelled = sum(bool(line["labels"]) for line in maker.lines)
    print(f"{name}: {labelled} labelled, {len(maker.lines) - labelled} without a label")
