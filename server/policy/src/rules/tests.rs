//! Rules files: parsing, and the error and position of each refusal.

use annals::matching::Rules;

use super::{RULES_BYTES_MAX, RulesFile};

/// The error with which a file is refused.
#[track_caller]
fn refused(text: &str) -> String {
    RulesFile::parse(text).expect_err(text).to_string()
}

#[test]
fn matchers_match_the_command_line_rules() {
    let text = r#"
        # what differs from run to run
        [[matcher]]
        rule = ["mask uuid $.messages[0].content", "query api-version"]
        ignore = "$.user"
        [[matcher]]
        preset = "gemini"
    "#;
    let rules = RulesFile::parse(text).unwrap();
    let wanted = Rules::none()
        .rule("mask uuid $.messages[0].content")
        .and_then(|rules| rules.rule("query api-version"))
        .and_then(|rules| rules.ignore("$.user"))
        .and_then(|rules| rules.preset("gemini"));
    assert_eq!(rules.matcher, wanted.unwrap());
    assert_eq!(rules.text(), text);
    assert_eq!(
        RulesFile::parse("matcher = [{ ignore = '$.user' }]").unwrap().matcher,
        Rules::none().ignore("$.user").unwrap()
    );
}

#[test]
fn prices_override_the_built_in_ones() {
    let text = "[[price]]\nmodel = 'Our-Model'\ninput = 1\n[[price]]\nmodel = 'gpt-4o'\ninput = 9.5\noutput = 1e1\ncached_input = 0\ncache_write = 0x10\n";
    let prices = RulesFile::parse(text).unwrap().prices;
    let of = |model: &str| prices.price(model).map(|price| (price.input, price.output, price.cached_input));
    assert_eq!(of("our-model-2025"), Some((1.0, 0.0, None)));
    assert_eq!(of("openai/gpt-4o"), Some((9.5, 10.0, Some(0.0))));
    assert_eq!(prices.price("gpt-4o").unwrap().cache_write, Some(16.0));
    assert_eq!(of("gpt-4o-mini").map(|price| price.0), Some(0.15), "others stay");
}

#[test]
fn empty_file_keeps_the_built_in_rules() {
    for text in ["", "# nothing yet\n"] {
        let rules = RulesFile::parse(text).unwrap();
        assert_eq!(rules.matcher, Rules::none());
        assert!(rules.prices.price("gpt-4o").is_some());
    }
    assert!(RulesFile::default().prices.price("gpt-4o").is_some());
}

#[test]
fn invalid_documents_are_refused_with_their_position() {
    for (text, wanted) in [
        ("[[matcher]\n", "line 1, column 1"),
        ("a = ", "line 1, column"),
        (
            "[[matcher]]\nignore = '$.a'\nignore = '$.b'",
            "line 3, column 1: this is not valid TOML: duplicate key",
        ),
        (
            "\n\n[[matchers]]\nignore = '$.a'",
            "line 3, column 3: there is no table \"matchers\"; there are [[matcher]], [[severity]] and [[price]]",
        ),
        ("version = 1", "line 1, column 1: there is no table \"version\""),
        ("[price]\nmodel = 'm'", "line 1, column 2: price is a list of tables: write [[price]] before each"),
        ("price = [1]", "line 1, column 1: price is a list of tables"),
        ("price = 1", "price is a list of tables"),
    ] {
        let error = refused(text);
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
    let long = format!("#{}", "x".repeat(RULES_BYTES_MAX));
    assert!(refused(&long).contains("at most 262144 are allowed"));
    // Deep nesting must not overflow the stack.
    refused(&format!("a = {}", "[".repeat(100_000)));
    refused(&format!("{}a = 1", "a.".repeat(100_000)));
}

#[test]
fn invalid_matchers_are_refused_with_their_position() {
    for (text, wanted) in [
        (
            "ignore = '$.user'\nignored = 1",
            "line 3, column 1: \"ignored\" is not a key of [[matcher]]; allowed are rule, ignore and preset",
        ),
        ("", "line 1, column 1: this [[matcher]] is empty; it takes rule, ignore and preset"),
        ("ignore = '$.messages'", "line 2, column 10: a rule that ignores $.messages is refused"),
        ("ignore = ['$.user',\n  '$.model']", "line 3, column 3: a rule that ignores $.model is refused"),
        ("ignore = '$.prompt'", "must not hide a whole message, prompt or model"),
        ("ignore = '$.tools'", "line 2, column 10: a rule that ignores $.tools is refused"),
        ("rule = 'ignore $.tools[*]'", "line 2, column 8: a rule that ignores $.tools[*] is refused"),
        ("rule = 'mask time $.model'", "line 2, column 8: a rule that masks time at $.model is refused"),
        ("rule = 'query model'", "line 2, column 8: a rule that ignores the query key \"model\""),
        ("rule = 'drop $.a'", "write `ignore PATH`, `mask SHAPE PATH` or `query KEY`"),
        ("preset = 'gemeni'", "line 2, column 10: unknown matcher \"gemeni\"; known matchers: none, gemini"),
        ("ignore = 'user'", "line 2, column 10: \"user\" is not a valid path"),
        ("ignore = 7", "line 2, column 10: ignore is a text or a list of texts, and this is a number"),
        (
            "ignore = ['$.a', ['$.b']]",
            "line 2, column 18: ignore is a text or a list of texts, and this is a list",
        ),
        ("ignore = []", "line 2, column 10: ignore is an empty list"),
        ("ignore = ''", "line 2, column 10: ignore is empty"),
    ] {
        let error = refused(&format!("[[matcher]]\n{text}"));
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
    let many: String = (0..65).map(|n| format!("'$.x{n}', ")).collect();
    assert!(refused(&format!("[[matcher]]\nignore = [{many}]")).contains("65 rules are too many"));
}

#[test]
fn invalid_severity_rules_are_refused_with_their_position() {
    let head = "[[severity]]\nseverity = 'flagged'\nwhy = 'x'\n";
    for (text, wanted) in [
        (
            "",
            "line 1, column 1: this [[severity]] has no condition and would always match; there are status, mount",
        ),
        (
            "statsu = 429",
            "line 4, column 1: \"statsu\" is not a key of [[severity]]; allowed are severity, why, status",
        ),
        (
            "status = 42",
            "line 4, column 10: status is a number from 100 to 599, a class such as \"5xx\", or a list",
        ),
        ("status = ['6xx']", "line 4, column 11: status is a number"),
        ("status = true", "and this is a truth value"),
        ("status = []", "line 4, column 10: status is an empty list"),
        ("model = 'gpt*4'", "line 4, column 9: in model a * stands at the end only"),
        ("model = 4", "line 4, column 9: model is a text or a list of texts, and this is a number"),
        ("api = 'openai_chat'", "line 4, column 7: there is no api \"openai_chat\"; there are openai.chat,"),
        ("matches = '('", "line 4, column 11: matches is a regular expression without backreferences: "),
        ("matches = '(a)\\1'", "line 4, column 11: matches is a regular expression without backreferences: "),
        ("matches = '(\\w{100}){100}'", "it is too large"),
        ("duration_over_ms = -1", "line 4, column 20: duration_over_ms is a whole number of 0 or more"),
        ("duration_over_ms = 1.5", "duration_over_ms is a whole number of 0 or more, and this is a number"),
        ("broken = 'yes'", "line 4, column 10: broken is true or false, and this is a text"),
        ("output = '$.a'", "line 4, column 10: output is a table of places and values"),
        ("output = {}", "line 4, column 10: output is empty"),
        ("output = { 'error' = 1 }", "line 4, column 12: \"error\" is not a path in a body"),
        (
            "output = { '$.a' = [1] }",
            "line 4, column 20: $.a is a text, a number, true or false, and not a list",
        ),
        ("output = { '$.a' = nan }", "line 4, column 20: $.a is a text, a number, true or false"),
    ] {
        let error = refused(&format!("{head}{text}"));
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
    for (text, wanted) in [
        (
            "why = 'x'\nstatus = 500",
            "line 1, column 1: this [[severity]] lacks severity; severity is \"flagged\" or",
        ),
        (
            "severity = 'normal'",
            "line 2, column 12: no rule lowers a severity: severity is \"flagged\" or \"escalated\"",
        ),
        ("severity = 'debug'", "line 2, column 12: no rule lowers"),
        (
            "severity = 'loud'",
            "line 2, column 12: severity is \"flagged\" or \"escalated\", and not \"loud\"",
        ),
        ("severity = 3", "line 2, column 12: severity is a text, and this is a number"),
        ("severity = 'flagged'\nstatus = 500", "line 1, column 1: this [[severity]] lacks why"),
        ("severity = 'flagged'\nwhy = \"a\\nb\"", "line 3, column 7: why is one line of at most 512 bytes"),
        ("severity = 'flagged'\nwhy = ''", "line 3, column 7: why is empty"),
    ] {
        let error = refused(&format!("[[severity]]\n{text}"));
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
    assert!(
        refused(&format!("{head}status = 500\n").repeat(101))
            .contains("line 401, column 1: this [[severity]] is one more than the 100")
    );
}

#[test]
fn invalid_prices_are_refused_with_their_position() {
    for (text, wanted) in [
        ("input = 1", "line 1, column 1: this [[price]] lacks model"),
        ("model = 'm'", "line 1, column 1: this [[price]] lacks input"),
        (
            "model = 'm'\ninptu = 1",
            "line 3, column 1: \"inptu\" is not a key of [[price]]; allowed are model, input, output, cached_input and cache_write",
        ),
        ("model = 'm'\ninput = -1", "line 3, column 9: input is a number of 0 or more"),
        ("model = 'm'\ninput = nan", "line 3, column 9: input is a number of 0 or more"),
        ("model = 'm'\ninput = 1\noutput = inf", "line 4, column 10: output is a number of 0 or more"),
        ("model = 'm'\ninput = '$1'", "line 3, column 9: input is a number of 0 or more, and this is a text"),
        (
            "model = 'm*'\ninput = 1",
            "line 2, column 9: a price applies to every model with this prefix: leave out the *",
        ),
        ("model = ''\ninput = 1", "line 2, column 9: model is empty"),
        (
            "model = 'm'\ninput = 1\n[[price]]\nmodel = 'M'\ninput = 2",
            "line 5, column 9: there is a price for \"M\" already",
        ),
    ] {
        let error = refused(&format!("[[price]]\n{text}"));
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
}
