//! Chooses the earlier body of a lane that a recipe is coded against (its base).
//!
//! Body i is coded against body i & (i - 1): the index with its lowest set bit cleared. Reading body i takes
//! as many recipes as i has set bits, at most log2 N. A lane of N bodies that each add a few extents costs N
//! log N of them.
//!
//! Invariant: after body i is pushed, the stack holds body i and those earlier bodies that a later body is
//! coded against. These are some of the indices that clearing the low bits of i gives.

use std::sync::Arc;

use super::Extent;

/// The recipes of one lane (for example all LLM inputs of a run) that later bodies may be coded against.
///
/// `T` is the caller's name for the place where a recipe is stored.
#[derive(Clone, Debug)]
pub struct DeltaStack<T> {
    recipes: Vec<LaneRecipe<T>>,
}

#[derive(Clone, Debug)]
struct LaneRecipe<T> {
    index: u64,
    tag: T,
    extents: Arc<Vec<Extent>>,
}

impl<T> Default for DeltaStack<T> {
    fn default() -> Self {
        Self { recipes: Vec::new() }
    }
}

impl<T> DeltaStack<T> {
    /// An empty lane.
    #[cfg(test)]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The index of the body that body `index` is coded against; `None` for the first.
    #[must_use]
    pub fn base_index(index: u64) -> Option<u64> {
        index.checked_sub(1).map(|before| index & before)
    }

    /// Number of recipes held: at most one more than the set bits of the last index.
    #[cfg(test)]
    #[must_use]
    pub fn recipe_count(&self) -> usize {
        self.recipes.len()
    }

    /// The recipe that body `index` is coded against.
    ///
    /// `None` for the first body of the lane, and if the lane was not pushed in order. The body is then
    /// stored without a base, which costs more space but is correct.
    #[must_use]
    pub fn base_for(&self, index: u64) -> Option<(&T, &Arc<Vec<Extent>>)> {
        let wanted = Self::base_index(index)?;
        self.recipes.iter().rev().find(|kept| kept.index == wanted).map(|kept| (&kept.tag, &kept.extents))
    }

    /// Adds body `index` and drops the recipes that no later body is coded against.
    ///
    /// Indices increase by one. To resume a lane, push the chain of its last body, first to last: that index
    /// with its low bits cleared one after the other.
    pub fn push(&mut self, index: u64, tag: T, extents: Arc<Vec<Extent>>) {
        self.recipes.retain(|kept| kept.index != index && is_later_base(kept.index, index));
        self.recipes.push(LaneRecipe { index, tag, extents });
    }
}

/// Whether a body after `index` is coded against `earlier`, a body before `index`. Such bodies are `earlier`
/// plus one bit below its lowest set bit; the greatest adds half of that bit. Powers of two are coded against
/// body 0.
fn is_later_base(earlier: u64, index: u64) -> bool {
    earlier == 0 || (earlier ^ index) < (earlier & earlier.wrapping_neg()) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By definition: some body after `index` is coded against `earlier`.
    fn is_later_base_by_definition(earlier: u64, index: u64) -> bool {
        (index + 1..=512).any(|later| DeltaStack::<()>::base_index(later) == Some(earlier))
    }

    #[test]
    fn delta_stack_keeps_only_bases_of_later_bodies() {
        let mut lane = DeltaStack::new();
        for index in 0..300 {
            for earlier in 0..index {
                assert_eq!(
                    is_later_base(earlier, index),
                    is_later_base_by_definition(earlier, index),
                    "{earlier} {index}"
                );
            }
            lane.push(index, index, Arc::default());
            let named = (0..index).filter(|earlier| is_later_base_by_definition(*earlier, index)).count();
            assert_eq!(lane.recipe_count(), named + 1, "after body {index}");
        }
        // Pushing the same index again replaces its recipe.
        let held = lane.recipe_count();
        lane.push(299, 7, Arc::default());
        assert_eq!((lane.recipe_count(), lane.recipes.last().map(|kept| kept.tag)), (held, Some(7)));
    }
}
