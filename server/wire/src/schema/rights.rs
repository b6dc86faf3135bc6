//! What a token may do.

use serde::{Deserialize, Serialize};

/// The set of rights of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// Write: begin runs, add to them, set keys.
    pub const RECORD: Self = Self(1);
    /// Read recorded data.
    pub const READ: Self = Self(2);
    /// Read runs through a profile that redacts their content.
    pub const REDACTED: Self = Self(4);
    /// Operate the whole store: verification, backups, tokens, metrics.
    pub const OPERATE: Self = Self(8);
    /// All of them.
    pub const ALL: Self = Self(15);
    /// No rights; an unauthenticated client has not even this set.
    pub const NONE: Self = Self(0);

    const NAMES: [(&'static str, Self); 4] = [
        ("record", Self::RECORD),
        ("read", Self::READ),
        ("redacted", Self::REDACTED),
        ("operate", Self::OPERATE),
    ];

    /// Whether this set includes all of `those`.
    #[must_use]
    pub fn includes(self, those: Self) -> bool {
        self.0 & those.0 == those.0
    }

    /// The union of both sets.
    #[must_use]
    pub const fn union(self, those: Self) -> Self {
        Self(self.0 | those.0)
    }
}

impl std::fmt::Display for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> =
            Self::NAMES.iter().filter(|(_, right)| self.includes(*right)).map(|(name, _)| *name).collect();
        f.write_str(&names.join(","))
    }
}

impl std::str::FromStr for Rights {
    type Err = String;

    /// Parses names separated by commas.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut rights = Self::NONE;
        for word in text.split(',') {
            let known = Self::NAMES.iter().find(|(name, _)| *name == word.trim());
            let (_, right) = known
                .ok_or_else(|| format!("{word:?} is not a right: use record, read, redacted or operate"))?;
            rights = rights.union(*right);
        }
        Ok(rights)
    }
}

impl Serialize for Rights {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rights {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
