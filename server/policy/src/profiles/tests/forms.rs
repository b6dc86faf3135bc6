//! Forms of secrets and personal data that were shown in clear: each line was missed once.

use super::{safe, short, shown};

/// Checks texts with their expected redacted forms; names of placeholders do not matter.
fn check(cases: &[(&str, &str)]) {
    let redactor = safe();
    let names = regex::Regex::new(r"\[[a-z-]+\]").unwrap();
    let mut wrong = Vec::new();
    for (text, expected) in cases {
        let found = names.replace_all(&short(&shown(&redactor, text)), "[*]").into_owned();
        if found != *expected {
            wrong.push(format!("{text}\n  shown    {found}\n  expected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// A stranger's labelled set had passwords under their own names, and most were shown.
#[test]
fn named_secrets_are_redacted_in_every_form() {
    check(&[
        (r#"{"user":"ana","password":"correct horse"}"#, r#"{"user":"ana","password":"[*]"}"#),
        (r#"{"db":{"db_password":"tulip-river"}}"#, r#"{"db":{"db_password":"[*]"}}"#),
        (r#"{"client_secret":"violet.9"}"#, r#"{"client_secret":"[*]"}"#),
        (r#"{"args":"{\"passphrase\":\"open sesame now\"}"}"#, r#"{"args":"{\"passphrase\":\"[*]\"}"}"#),
        ("DB_PASSWORD=hunter22\nDB_HOST=db1", "DB_PASSWORD=[*]\nDB_HOST=db1"),
        ("export REDIS_PASSWORD='p w!d'", "export REDIS_PASSWORD='[*]'"),
        ("password: Sommer2024!\n", "password: [*]\n"),
        ("db = connect(user=\"a\", password=\"tulip\")", "db = connect(user=\"a\", password=\"[*]\")"),
        ("postgres://app:s3cr3t@db.internal:5432/x", "postgres://app:[*]@db.internal:5432/x"),
        ("redis://:tulip@cache:6379/0", "redis://:[*]@cache:6379/0"),
        ("mysql://root:p%40ss@10.0.0.1.nip/x", "mysql://root:[*]@10.0.0.1.nip/x"),
        ("GET /login?user=ana&password=tulip9&x=1", "GET /login?user=ana&password=[*]&x=1"),
        (r#"{"AWS_SECRET_ACCESS_KEY":"abcdabcdabcdabcd"}"#, r#"{"AWS_SECRET_ACCESS_KEY":"[*]"}"#),
    ]);
}

/// References, types and examples stand under the same names; they help the reader and hide nothing.
#[test]
fn named_values_that_are_no_secrets_stay() {
    let texts = [
        r#"{"password":"${DB_PASSWORD}"}"#,
        r#"{"password":"string"}"#,
        r#"{"password_hint":"name of my dog"}"#,
        r#"{"token":"Hello"}"#,
        r#"{"max_tokens":1024,"key":"name","next_page_token":"abc"}"#,
        r#"{"type":"object","properties":{"password":{"type":"string"}},"required":["password"]}"#,
        "password = os.environ[\"DB_PASSWORD\"]",
        "password: str, token: Token",
        "api_key=api_key, password=get_password(user)",
        "PASSWORD=changeme",
        "password=<your password>",
        "The password: it must have a digit.",
        "https://example.org:8080/a@b",
        "token = self.tokens[0]",
    ];
    let redactor = safe();
    for text in texts {
        assert_eq!(shown(&redactor, text), text);
    }
}

/// Numbers of persons were found only if they looked like phones.
#[test]
fn personal_numbers_under_their_names_are_redacted() {
    check(&[
        (r#"{"ssn":"219-09-9999"}"#, r#"{"ssn":"[*]"}"#),
        (r#"{"social_security_number":219099999}"#, r#"{"social_security_number":"[*]"}"#),
        ("Her SSN is 219-09-9999.", "Her SSN is [*]."),
        ("social security number: 219 09 9999", "social security number: [*]"),
        (r#"{"passport_number":"C01X00T47"}"#, r#"{"passport_number":"[*]"}"#),
        ("Passport No. K1234567", "Passport No. [*]"),
        (r#"{"date_of_birth":"1984-03-12"}"#, r#"{"date_of_birth":"[*]"}"#),
        (r#"{"dob":"03/12/1984"}"#, r#"{"dob":"[*]"}"#),
        ("DOB: 12 March 1984", "DOB: [*]"),
        ("date of birth 12.03.1984", "date of birth [*]"),
    ]);
}

/// Keys of these providers have forms that the list of prefixes lacked; one has no digit.
#[test]
fn keys_of_more_providers_are_redacted() {
    let keys = [
        "AKIAQWERTYUIOPASDFGH",
        "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",
        "figd_Zk3vR8mQ2xW7pL9cT4bN6hJ1sD5fG0aY_uE8iOqM",
        "dckr_pat_7fK2mX9qLw4RtB8vZn3HcJ6sYpD",
        "pcsk_4Kx9Rz_7mQ2Wv8LpTc5NbHj3YsDf6GaUe1ZiOk4Kx9Rz7mQ2Wv8LpTc5NbHj3Ys",
        "fw_3ZkVr8mQ2xW7pL9cT4bN6hJ1",
        "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",
        "ATATT3xFfGF0Qz8kLm2Rv7Wx4Tc9Nb6Hj1Ys5Df3Ga0Ue8ZiOk4Kx9Rz7mQ2Wv8LpTc5NbHj3YsDf6GaUe1ZiOk4Kx9Rz7mQ2Wv8LpTc5NbHj3YsDf6GaUe1ZiOk4Kx9Rz7mQ2Wv8LpTc5NbHj3YsDf6GaUe1ZiOk=1A2B3C4D",
        "NRAK-7K2MX9QLW4RTB8VZN3HCJ6SYPDA",
        "secret_4Kx9Rz7mQ2Wv8LpTc5NbHj3YsDf6GaUe1ZiOk4Kx9R",
    ];
    let cases: Vec<(String, String)> = keys
        .iter()
        .flat_map(|key| {
            [
                (format!("use {key} here"), "use [*] here".into()),
                (format!("{{\"id\":\"{key}\"}}"), "{\"id\":\"[*]\"}".into()),
            ]
        })
        .collect();
    let cases: Vec<(&str, &str)> =
        cases.iter().map(|(text, shown)| (text.as_str(), shown.as_str())).collect();
    check(&cases);
}

/// A number without groups needs the word that names it; a member's name that ends in `_id` hid the rest.
#[test]
fn plain_phones_and_numbers_in_ids_are_redacted() {
    check(&[
        ("phone 4155550132", "phone [*]"),
        ("Mobile: 7700900123", "Mobile: [*]"),
        ("my phone number is 4155550132", "my phone number is [*]"),
        (r#"{"customer_id":"4111111111111111"}"#, r#"{"customer_id":"[*]"}"#),
        (r#"{"payer_id":"4111 1111 1111 1111"}"#, r#"{"payer_id":"[*]"}"#),
        (r#"{"contact_id":"+49 30 901820"}"#, r#"{"contact_id":"[*]"}"#),
        (r#"{"phone_id":"4155550132"}"#, r#"{"phone_id":"[*]"}"#),
    ]);
}

/// Twelve words of the list of BIP 39 restore a wallet.
#[test]
fn seed_phrases_are_redacted() {
    check(&[
        (
            "write down: ripple scissors kick mammal hire column oak again sun offer wealth tomorrow. Done",
            "write down: [*]. Done",
        ),
        (
            r#"{"words":"ripple scissors kick mammal hire column oak again sun offer wealth tomorrow"}"#,
            r#"{"words":"[*]"}"#,
        ),
    ]);
    // A repeated word of the list was taken for a phrase.
    let repeated = "word ".repeat(1000);
    check(&[(&*repeated, &*repeated), ("a able ".repeat(40).as_str(), "a able ".repeat(40).as_str())]);
}

/// A page or a chat shows the same characters, and the detectors saw others.
#[test]
fn disguised_values_are_redacted() {
    check(&[
        ("mail anna&#64;example&#46;com now", "mail [*] now"),
        ("mail anna&commat;example.com now", "mail [*] now"),
        ("mail an\u{200b}na@exam\u{200d}ple.com now", "mail [*] now"),
        ("card ４１１１ １１１１ １１１１ １１１１ ok", "card [*] ok"),
        ("mail ａｎｎａ＠ｅｘａｍｐｌｅ．ｃｏｍ now", "mail [*] now"),
        ("&quot;sk-proj-abcDEF123456ghiJKL7890&quot;", "&quot;[*]&quot;"),
        ("sk-proj-abcDEF\u{200b}123456ghiJKL7890 x", "[*] x"),
    ]);
}

/// A terminal wraps a key; both halves are the key.
#[test]
fn keys_split_by_a_newline_are_redacted() {
    check(&[
        ("key sk-proj-abcDEF12\n3456ghiJKL7890mnO done", "key [*] done"),
        ("key ghp_16C7e42F292c6912E7710c\n838347Ae178B4a done", "key [*] done"),
        ("sk-proj-abcDEF123456ghiJKL7890\nNext line", "[*]\nNext line"),
    ]);
}
