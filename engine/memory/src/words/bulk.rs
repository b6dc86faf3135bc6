//! Scores a question against all entries of a part of the inverted index at once: the arithmetic of
//! [`question`](super::question) over sets of entries instead of one card after the other. Both give equal answers and
//! scores; a property test compares them.

use super::super::postings::{Bitmap, Term};
use super::question::{
    CREDIT_ELSEWHERE, CREDIT_MAIN, CREDIT_SAME_KIND, CREDIT_SIMILAR, QuestionTerm, QuestionTerms, TermRarity,
    TermRole, is_answer, share,
};

/// A question's postings in one part.
#[derive(Debug)]
pub(in super::super) struct QuestionLists {
    /// Number of entries of the part.
    count: usize,
    /// The living entries.
    living: Bitmap,
    terms: Vec<TermLists>,
    /// The entries that hold all identifiers of the question.
    named: Bitmap,
}

/// The entries that hold a word of a question.
#[derive(Debug)]
struct TermLists {
    main: Bitmap,
    other: Bitmap,
    /// They hold another word of its kind.
    kind: Bitmap,
    /// They hold none of the word, and more than half of its n-grams: by how many they hold. Its length is the number of the
    /// word's n-grams and one.
    alike: Vec<Bitmap>,
}

/// What a question wants of a part's entries.
#[derive(Debug)]
pub(in super::super) struct BulkScores<'a> {
    /// Only these are looked at.
    pub(in super::super) among: &'a Bitmap,
    /// `None`: entries that answer the question.
    pub(in super::super) min_score: Option<f32>,
}

impl QuestionTerms {
    /// Calls `each` with every term whose postings a question needs.
    pub(in super::super) fn for_each_posting(&self, each: &mut dyn FnMut(Term)) {
        for term in &self.terms {
            for word in std::iter::once(&term.word).chain(&term.kind) {
                each(Term::Main(*word));
                each(Term::Other(*word));
            }
            term.grams.iter().for_each(|gram| each(Term::Gram(*gram)));
        }
        self.identifiers.iter().for_each(|one| each(Term::Identifier(*one)));
    }
}

impl QuestionLists {
    /// Puts a question's lists together from the postings of a part. `find` gives those of a term, if the part has any.
    pub(in super::super) fn new<'a>(
        asked: &QuestionTerms,
        living: Bitmap,
        count: usize,
        find: &dyn Fn(Term) -> Option<&'a Bitmap>,
    ) -> Self {
        let list = |term| find(term).cloned().unwrap_or_else(|| Bitmap::empty(count));
        let terms = asked.terms.iter().map(|term| {
            let (main, other) = (list(Term::Main(term.word)), list(Term::Other(term.word)));
            let mut kind = Bitmap::empty(count);
            for word in &term.kind {
                for list in [Term::Main(*word), Term::Other(*word)].into_iter().filter_map(find) {
                    kind.add_all(list);
                }
            }
            let grams: Vec<Option<&Bitmap>> = term.grams.iter().map(|gram| find(Term::Gram(*gram))).collect();
            let mut exact = main.clone();
            exact.add_all(&other);
            let alike = alike(&grams, &exact, count);
            TermLists { main, other, kind, alike }
        });
        let terms = terms.collect();
        let mut named = living.clone();
        for one in &asked.identifiers {
            match find(Term::Identifier(*one)) {
                Some(list) => named.keep_only(list),
                None => named = Bitmap::empty(count),
            }
        }
        Self { count, living, terms, named }
    }
}

/// The entries that hold more than half of a word's n-grams but not the word, by the number of n-grams.
fn alike(grams: &[Option<&Bitmap>], exact: &Bitmap, count: usize) -> Vec<Bitmap> {
    // Counters of all entries side by side: bit `n` of each entry's counter stands in `digits[n]`.
    let mut digits: Vec<Bitmap> = Vec::new();
    for list in grams.iter().flatten() {
        let mut carry = (*list).clone();
        for digit in &mut digits {
            for (carry, digit) in carry.words_mut().iter_mut().zip(digit.words_mut()) {
                let both = *carry & *digit;
                *digit ^= *carry;
                *carry = both;
            }
        }
        if !carry.is_empty() {
            digits.push(carry);
        }
    }
    let mut by_count: Vec<Bitmap> = Vec::new();
    for wanted in 0..=grams.len() {
        let mut found = Bitmap::empty(if 2 * wanted > grams.len() { count } else { 0 });
        if 2 * wanted > grams.len() && wanted >> digits.len() == 0 {
            found = Bitmap::full(count);
            for (n, digit) in digits.iter().enumerate() {
                match wanted >> n & 1 {
                    1 => found.keep_only(digit),
                    _ => found.remove_all(digit),
                }
            }
            found.remove_all(exact);
        }
        by_count.push(found);
    }
    by_count
}

impl TermLists {
    /// Calls `each` with the entries among some that hold the word, or something like it, and their credit.
    fn for_each_credit(&self, among: &Bitmap, each: &mut dyn FnMut(usize, u64)) {
        self.main.iter_with(among).for_each(|entry| each(entry, CREDIT_MAIN));
        self.other.iter_with(among).for_each(|entry| each(entry, CREDIT_ELSEWHERE));
        let grams = self.alike.len() as u64 - 1;
        for (count, entries) in (0u64..).zip(&self.alike) {
            if let Some(credit) = (CREDIT_SIMILAR * count).checked_div(grams) {
                entries.iter_with(among).for_each(|entry| each(entry, credit));
            }
        }
    }

    /// As [`Self::for_each_credit`], but another word of its kind counts, too.
    fn for_each_kind_credit(&self, among: &Bitmap, each: &mut dyn FnMut(usize, u64)) {
        if self.kind.is_empty() {
            return self.for_each_credit(among, each);
        }
        let mut rest = among.clone();
        rest.remove_all(&self.kind);
        self.for_each_credit(&rest, each);
        self.kind.iter_with(among).for_each(|entry| {
            let is_main = self.main.contains(entry);
            each(entry, if is_main { CREDIT_MAIN } else { CREDIT_SAME_KIND });
        });
    }
}

/// What an entry holds of the words that count for an answer.
#[derive(Debug, Clone, Copy, Default)]
struct HeldWords {
    there: u64,
    /// The weight of the names that it holds, which do not count.
    names_weight: u64,
    names: u32,
    matched: u32,
}

impl TermRarity {
    /// Counts the living entries of a part.
    pub(in super::super) fn count_part(&mut self, lists: &QuestionLists) {
        self.count_more(lists.living.count());
        for (holding, term) in self.holding.iter_mut().zip(&lists.terms) {
            for list in [&term.main, &term.other] {
                let both = list.words().iter().zip(lists.living.words());
                *holding += both.map(|(a, b)| u64::from((a & b).count_ones())).sum::<u64>();
            }
        }
    }

    /// Calls `each` with the entries of a part that are wanted, by ascending ordinals, and their scores. As
    /// [`TermRarity::score`] and [`TermRarity::answers`] of each entry.
    pub(in super::super) fn score_part(
        &self,
        asked: &QuestionTerms,
        lists: &QuestionLists,
        wanted: &BulkScores<'_>,
        each: &mut dyn FnMut(usize, f32),
    ) {
        let mut among = lists.named.clone();
        among.keep_only(wanted.among);
        if wanted.min_score.is_none() && !among.is_empty() {
            among = self.answering(asked, lists, &among);
        }
        if among.is_empty() {
            return;
        }
        let (mut there, mut all) = (vec![0u64; lists.count], 0u64);
        for ((term, lists), weight) in asked.terms.iter().zip(&lists.terms).zip(self.weights()) {
            let weight = term.score_weight(*weight);
            all += weight * CREDIT_MAIN;
            lists.for_each_credit(&among, &mut |entry, credit| add(&mut there, entry, weight * credit));
        }
        for entry in among.iter() {
            let score = share(there.get(entry).copied().unwrap_or(0), all);
            if wanted.min_score.is_none_or(|least| score >= least) {
                each(entry, score);
            }
        }
    }

    /// The entries among some that answer the question.
    fn answering(&self, asked: &QuestionTerms, lists: &QuestionLists, among: &Bitmap) -> Bitmap {
        let mut held = vec![HeldWords::default(); lists.count];
        let (mut words, mut all) = (0u64, 0u64);
        let counted = |term: &QuestionTerm| term.role != TermRole::Empty;
        let terms = asked.terms.iter().zip(&lists.terms).zip(self.weights());
        for ((term, lists), weight) in terms.filter(|((term, _), _)| counted(term)) {
            let (weight, is_name) = (term.answer_weight(*weight), term.role == TermRole::Name);
            words += 1;
            all += weight * CREDIT_MAIN;
            lists.for_each_kind_credit(among, &mut |entry, credit| {
                let Some(held) = held.get_mut(entry) else { return };
                if is_name && credit >= CREDIT_ELSEWHERE {
                    held.names += 1;
                    held.names_weight += weight * CREDIT_MAIN;
                } else if credit > 0 {
                    held.matched += 1;
                    held.there += weight * credit;
                }
            });
        }
        let mut found = Bitmap::empty(lists.count);
        for entry in among.iter() {
            let held = held.get(entry).copied().unwrap_or_default();
            let is_named = held.names > 0 || !asked.identifiers.is_empty();
            let counts = (words - u64::from(held.names), u64::from(held.matched));
            if is_answer(is_named, counts, (held.there, all - held.names_weight)) {
                found.insert(entry);
            }
        }
        found
    }
}

fn add(sums: &mut [u64], entry: usize, by: u64) {
    if let Some(sum) = sums.get_mut(entry) {
        *sum += by;
    }
}
