//! The searches for names as they were before they were made fast: plain, slow, and the same results. The fast
//! ones are compared with them on random texts.

use aho_corasick::AhoCorasick;

use super::number::{self, LetterlessStretch};
use super::{before, begins, is_alnum, named, seed};
use crate::secret_names::{SecretName, secret_name};

/// Pieces of texts in which names, numbers and their surroundings meet.
const PIECES: [&str; 72] = [
    "a",
    "s",
    "p",
    "d",
    "do",
    "dob",
    "birth",
    "orn",
    "born",
    "ssn",
    "sn",
    "social",
    " security",
    "_security",
    "passport",
    "no",
    " number",
    "is ",
    "num",
    "nr",
    "1",
    "0",
    "11",
    "415",
    "4111",
    "555",
    "0100",
    "1984",
    "-",
    "/",
    ".",
    ":",
    "=",
    "://",
    "@",
    " ",
    "\n",
    "\\n",
    "\\N",
    "\\",
    "\"",
    "'",
    "pwd",
    "Password",
    "pass",
    "_pass",
    "token",
    "secret",
    "access_token",
    "public",
    "pub-lic",
    "ratelimit",
    "tokens_",
    "max_tokens",
    "next_page",
    "phone",
    "telephone",
    "tel",
    "Mobile",
    "call",
    "RING",
    "fax",
    "+",
    "(",
    ")",
    "é",
    "219-09-9999",
    "C01X00T47",
    "03/12/1984",
    "key",
    "api_",
    "x",
];

/// SplitMix64 (Steele et al., 2014).
struct TextRng(u64);

impl TextRng {
    fn next(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ mixed >> 31) % count as u64).unwrap()
    }

    fn text(&mut self) -> String {
        let count = self.next(40);
        let few: Vec<&str> = (0..=self.next(6)).map(|_| PIECES[self.next(PIECES.len())]).collect();
        let is_narrow = self.next(2) == 0;
        let piece = |numbers: &mut Self| {
            let piece = match is_narrow {
                true => few[numbers.next(few.len())],
                false => PIECES[numbers.next(PIECES.len())],
            };
            if numbers.next(7) == 0 { piece.to_uppercase() } else { piece.to_owned() }
        };
        (0..count).map(|_| piece(self)).collect()
    }
}

/// Calls `check` with random texts; prints the seed of a text that fails.
fn with_random_texts(check: impl Fn(&[u8])) {
    struct SeedOnPanic(u64);
    impl Drop for SeedOnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("seed {}: run with ANNALS_SEED={} and the test's name", self.0, self.0);
            }
        }
    }
    let one = std::env::var("ANNALS_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    for seed in one.map_or(0..20_000, |seed| seed..seed + 1) {
        let _seed = SeedOnPanic(seed);
        check(TextRng(seed).text().as_bytes());
    }
}

/// The facts of persons, by a search for all words.
fn facts(text: &[u8]) -> Vec<std::ops::Range<usize>> {
    use named::PersonFact::{Birth, Passport, SocialSecurity};
    let words = [
        ("ssn", SocialSecurity),
        ("social security", SocialSecurity),
        ("social_security", SocialSecurity),
        ("passport", Passport),
        ("birth", Birth),
        ("dob", Birth),
        ("born", Birth),
    ];
    let search =
        AhoCorasick::builder().ascii_case_insensitive(true).build(words.map(|(word, _)| word)).unwrap();
    let (mut found, mut from) = (Vec::new(), 0);
    for word in search.find_iter(text) {
        let (name, fact) = words[word.pattern().as_usize()];
        let is_part = before(text, word.start()).is_some_and(is_alnum) && name != "birth";
        if word.start() < from || is_part {
            continue;
        }
        if let Some(range) = named::value_of_fact(text, word.end(), fact) {
            from = range.end;
            found.push(range);
        }
    }
    found
}

#[test]
fn facts_equal_those_of_a_search_for_all_words() {
    with_random_texts(|text| {
        assert_eq!(named::find(text, true, true).facts, facts(text), "{:?}", String::from_utf8_lossy(text));
    });
}

/// Whether a word before a number says that it is a phone number, by a search for each word.
fn says_phone(text: &[u8], at: usize) -> bool {
    let head = text[at.saturating_sub(20)..at].to_ascii_lowercase();
    let words = [
        "phone",
        "telephone",
        "cellphone",
        "tel",
        "mobil",
        "mobile",
        "fax",
        "call",
        "ring",
        "handy",
        "cell",
        "whatsapp",
        "sms",
        "telefon",
    ];
    let ends = |at: usize| head.get(at).is_none_or(|byte| !byte.is_ascii_alphabetic());
    words.iter().any(|word| {
        let mut places = memchr::memmem::find_iter(&head, word);
        places.any(|place| ends(place + word.len()) && (begins(&head, place) || *word == "phone"))
    })
}

fn names_phone(text: &[u8], at: usize) -> bool {
    let head = text[at.saturating_sub(32)..at].to_ascii_lowercase();
    let names = [
        "phone",
        "telephone",
        "cellphone",
        "tel",
        "mobile",
        "mobil",
        "fax",
        "cell",
        "whatsapp",
        "sms",
        "telefon",
        "handy",
    ];
    let between = ["number", "no", "nr", "is", "num", ""];
    let mut words = head.rsplit(|byte| !byte.is_ascii_alphabetic());
    let is_one_of = |words: &[&str], word: &[u8]| words.iter().any(|known| known.as_bytes() == word);
    words.find(|word| !is_one_of(&between, word)).is_some_and(|word| is_one_of(&names, word))
}

/// The stretch without letters is remembered from number to number, in whatever order they are looked at.
#[test]
fn phone_words_equal_those_of_a_plain_search() {
    with_random_texts(|text| {
        let mut letterless = LetterlessStretch::default();
        for at in 0..=text.len() {
            let shown = String::from_utf8_lossy(text);
            let says = number::says_phone(text, at, &mut letterless);
            assert_eq!(says, says_phone(text, at), "says, {shown:?} at {at}");
            let names = number::names_phone(text, at, &mut letterless);
            assert_eq!(names, names_phone(text, at), "names, {shown:?} at {at}");
        }
    });
}

/// No number that is one is left out before its groups are read.
#[test]
fn numbers_left_out_early_are_none() {
    with_random_texts(|text| {
        let mut letterless = LetterlessStretch::default();
        let digits = (0..text.len()).filter(|at| text[*at].is_ascii_digit() && begins(text, *at));
        for at in digits {
            for named in [false, true] {
                let groups = number::DigitGroups::read(text, at);
                let is_one = groups.is_some_and(|groups| {
                    groups.card(text).is_some() || groups.phone(text, named, &mut letterless).is_some()
                });
                let may = number::may_begin(text, at, named, &mut letterless);
                assert!(may || !is_one, "{:?} at {at}", String::from_utf8_lossy(text));
            }
        }
    });
}

/// What a name says, by a search of its squeezed form for each word.
fn plain_secret_name(name: &str) -> Option<SecretName> {
    let passwords = [
        "password",
        "passwd",
        "passphrase",
        "passcode",
        "pwd",
        "secret",
        "apikey",
        "secretkey",
        "accesskey",
        "privatekey",
        "encryptionkey",
        "signingkey",
        "masterkey",
        "authkey",
        "accountkey",
        "sharedkey",
        "accesstoken",
        "refreshtoken",
        "authtoken",
        "bearertoken",
        "sessiontoken",
        "credential",
        "mnemonic",
        "recoveryphrase",
    ];
    let counted = [
        "tokencount",
        "tokenscount",
        "pagetoken",
        "nexttoken",
        "continuationtoken",
        "maxtokens",
        "signatureinput",
        "tokentype",
    ];
    let name = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let last = name.rsplit(['_', '-', '.']).next().unwrap_or_default();
    let is_lettered = name.ends_with(|letter: char| letter.is_ascii_alphabetic());
    let squeezed: String =
        name.to_ascii_lowercase().chars().filter(|letter| !"_-".contains(*letter)).collect();
    let is_pass = last.eq_ignore_ascii_case("pass") && last.len() < name.len();
    if is_lettered && (is_pass || passwords.iter().any(|end| squeezed.ends_with(end))) {
        return (!squeezed.contains("public")).then_some(SecretName::Password);
    }
    let is_counted = counted.iter().any(|end| squeezed.ends_with(end))
        || squeezed.contains("ratelimit") && squeezed.contains("tokens");
    (is_lettered && squeezed.ends_with("token") && !is_counted).then_some(SecretName::Token)
}

#[test]
fn secret_names_equal_those_of_a_plain_search() {
    with_random_texts(|text| {
        let name = std::str::from_utf8(text).unwrap().trim();
        assert_eq!(secret_name(name.as_bytes()), plain_secret_name(name), "{name:?}");
    });
}

/// The list is looked up by the first letters of a word.
#[test]
fn listed_words_are_those_of_the_list() {
    let words: Vec<&str> = include_str!("../../rules/bip39.txt").lines().collect();
    assert_eq!(words.len(), 2048);
    assert!(words.iter().all(|word| seed::is_listed(word.as_bytes())));
    let others =
        words.iter().flat_map(|word| [format!("{word}x"), word[1..].to_owned(), word.to_uppercase()]);
    for other in others.filter(|other| !words.contains(&other.as_str())) {
        assert!(!seed::is_listed(other.as_bytes()), "{other}");
    }
}
