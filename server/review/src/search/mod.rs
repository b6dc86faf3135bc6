//! Search in the texts of recorded frames: by their words, and by similar words, as agents' memory is recalled. [`find_by_meaning`]
//! finds runs by their questions, which agents' memory holds.
//!
//! Recording pays nothing: [`catch_up`] indexes what was recorded since the last search, a bounded amount at a time.
//! A text that several requests of a run repeat is indexed with the first of them (`texts`). [`find`] reads each hit's
//! frame again, so a hit shows what the frame says now, and a reader with a profile is given a hit only if the text as
//! the profile shows it answers the question.

mod catch_up;
mod find;
mod meaning;
#[cfg(test)]
mod meaning_tests;
#[cfg(test)]
mod tests;
mod texts;

pub use catch_up::{CatchUp, catch_up, is_caught_up};
pub use find::{FoundText, HITS_MAX, SearchAnswer, SearchGap, SearchHit, find};
pub use meaning::{MeaningAnswer, QuestionHit, RunHit, find_by_meaning};
