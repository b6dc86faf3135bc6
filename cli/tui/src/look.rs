//! What the terminal can show: colours, characters beyond ASCII. Colour means severity and nothing else; each
//! severity also has a letter.

use annals_review::ShownSeverity;
use annals_text::visible::printable;
use ratatui::style::{Color, Modifier, Style};

/// What the environment says about the terminal.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Whether standard input and output are a terminal.
    pub is_terminal: bool,
    pub term: Option<String>,
    pub no_color: Option<String>,
    pub lc_all: Option<String>,
    pub lc_ctype: Option<String>,
    pub lang: Option<String>,
}

/// Why a terminal cannot show the view, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfitTerminal(pub &'static str);

/// How the view looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    pub colour: bool,
    /// Whether the terminal shows UTF-8.
    pub unicode: bool,
}

impl Look {
    /// The look for these surroundings.
    ///
    /// # Errors
    /// If nothing can be shown: no terminal, or one that cannot place text.
    pub fn of(surroundings: &Surroundings) -> Result<Self, UnfitTerminal> {
        if !surroundings.is_terminal {
            return Err(UnfitTerminal("standard input and output must be a terminal"));
        }
        match surroundings.term.as_deref() {
            Some("dumb") => return Err(UnfitTerminal("a terminal with TERM=dumb cannot place text")),
            None | Some("") => return Err(UnfitTerminal("TERM is not set, so the terminal is unknown")),
            Some(_) => {}
        }
        let said = [&surroundings.lc_all, &surroundings.lc_ctype, &surroundings.lang];
        // The first one that is set and not empty counts (POSIX, section 8.2).
        let locale = said.into_iter().flatten().find(|value| !value.is_empty());
        let locale = locale.map(|value| value.to_ascii_lowercase()).unwrap_or_default();
        let unicode = locale.contains("utf-8") || locale.contains("utf8");
        let colour = surroundings.no_color.as_ref().is_none_or(String::is_empty);
        Ok(Self { colour, unicode })
    }

    pub(crate) fn dim(self) -> Style {
        if self.colour { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    pub(crate) fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) fn severity(self, severity: ShownSeverity) -> Style {
        let style = match severity {
            ShownSeverity::Ok => return Style::new(),
            _ => self.bold(),
        };
        match severity {
            _ if !self.colour => style,
            ShownSeverity::Ok => style,
            ShownSeverity::Flagged => style.fg(Color::Yellow),
            ShownSeverity::Failed => style.fg(Color::Red),
            ShownSeverity::Escalated => style.fg(Color::Magenta),
        }
    }

    /// Text from a recording on one line, safe for this terminal.
    pub(crate) fn one_line(self, text: &str) -> String {
        let line: String = self.safe(text).split_whitespace().collect::<Vec<_>>().join(" ");
        line
    }

    /// Text from a recording, safe for this terminal: control characters and characters that it cannot show
    /// become escapes. Line ends stay.
    pub(crate) fn safe(self, text: &str) -> String {
        let text = printable(text).replace('\t', "    ");
        self.own(&text)
    }

    /// Text of our own: the same without escapes of control characters.
    pub(crate) fn own(self, text: &str) -> String {
        if self.unicode || text.is_ascii() {
            return text.to_owned();
        }
        let mut ascii = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '…' => ascii.push_str("..."),
                '→' => ascii.push_str("->"),
                '←' => ascii.push_str("<-"),
                '·' => ascii.push('-'),
                '▇' => ascii.push('='),
                '│' => ascii.push('|'),
                '─' => ascii.push('-'),
                c if c.is_ascii() => ascii.push(c),
                c => ascii.extend(c.escape_unicode()),
            }
        }
        ascii
    }

    pub(crate) fn rule(self) -> &'static str {
        if self.unicode { "─" } else { "-" }
    }

    pub(crate) fn upright(self) -> &'static str {
        if self.unicode { "│" } else { "|" }
    }

    pub(crate) fn bar(self) -> &'static str {
        if self.unicode { "▇" } else { "=" }
    }
}

/// The letter of a severity.
pub(crate) fn letter(severity: ShownSeverity) -> &'static str {
    match severity {
        ShownSeverity::Ok => " ",
        ShownSeverity::Flagged => "!",
        ShownSeverity::Failed => "F",
        ShownSeverity::Escalated => "E",
    }
}
