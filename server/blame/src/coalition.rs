//! Forks with several perturbed steps: necessity and sufficiency of steps and pairs, and sampled orders.
//!
//! In a coalition its steps are perturbed, and the other steps keep their recorded answers by position,
//! although requests differ. Two kinds of steps are not held, and answer as their request asks: the run's last
//! step, whose answer is the outcome itself in many programs, and steps whose answer never changed when they
//! were perturbed alone. A step is held when its own sufficiency is tested.

use crate::document::BlameDocument;
use crate::ranking::{Coalitions, Role, rows};
use crate::statistics::SeededNumbers;

/// The coalitions that show which steps are necessary and sufficient: each step alone, all steps but one, and
/// all.
pub(crate) fn single_coalitions(steps: &[u32]) -> Vec<Vec<u32>> {
    let mut wanted: Vec<Vec<u32>> = steps.iter().map(|step| vec![*step]).collect();
    wanted.extend(steps.iter().map(|held| steps.iter().copied().filter(|step| step != held).collect()));
    wanted.push(steps.to_vec());
    wanted.retain(|coalition| !coalition.is_empty());
    wanted.sort();
    wanted.dedup();
    wanted
}

/// The coalitions that show which pairs act together, given those of single steps: two halves of a
/// conjunction are held while all others are perturbed; two sufficient steps are perturbed together.
pub(crate) fn pair_coalitions(document: &BlameDocument) -> Vec<Vec<u32>> {
    let coalitions = Coalitions::new(document);
    let of_role = |wanted: &[Role]| -> Vec<u32> {
        let mut steps: Vec<u32> = rows(document)
            .iter()
            .filter(|row| row.role.is_some_and(|role| wanted.contains(&role)))
            .map(|row| row.step)
            .collect();
        steps.sort_unstable();
        steps
    };
    let pairs = |steps: Vec<u32>| {
        let mut all = Vec::new();
        for (place, first) in steps.iter().enumerate() {
            all.extend(steps.iter().skip(place + 1).map(|second| [*first, *second]));
        }
        all
    };
    let held = pairs(of_role(&[Role::PartOfConjunction])).into_iter().map(|pair| coalitions.without(&pair));
    let together = pairs(of_role(&[Role::OverDetermined, Role::Echo])).into_iter().map(|pair| pair.to_vec());
    let mut wanted: Vec<Vec<u32>> = held.chain(together).filter(|coalition| !coalition.is_empty()).collect();
    wanted.sort();
    wanted.dedup();
    wanted
}

/// Random orders of the steps.
pub(crate) fn sampled_orders(steps: &[u32], orders: u32, seed: u64) -> Vec<Vec<u32>> {
    let mut numbers = SeededNumbers::new(seed);
    (0..orders).map(|_| numbers.order(steps.len()).into_iter().map(|place| steps[place]).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_coalitions_hold_each_step_once() {
        let wanted = single_coalitions(&[2, 4, 7]);
        let expected: Vec<Vec<u32>> =
            vec![vec![2], vec![2, 4], vec![2, 4, 7], vec![2, 7], vec![4], vec![4, 7], vec![7]];
        assert_eq!(wanted, expected);
        assert_eq!(single_coalitions(&[3]), vec![vec![3]]);
    }

    /// Two halves are held while all others are perturbed; two steps that suffice alone are perturbed together.
    #[test]
    fn pair_coalitions_test_the_pairs_that_can_act_together() {
        use crate::ranking::tests::{document, with_coalitions};
        let steps = document("SSS", &[(1, "F"), (2, "F"), (3, "S"), (4, "s"), (5, "S")]);
        let singles: [(&[u32], &str); 11] = [
            (&[1], "F"),
            (&[2], "F"),
            (&[3], "S"),
            (&[4], "S"),
            (&[5], "S"),
            (&[1, 2, 3, 4, 5], "F"),
            (&[2, 3, 4, 5], "F"),
            (&[1, 3, 4, 5], "F"),
            (&[1, 2, 4, 5], "S"),
            (&[1, 2, 3, 5], "S"),
            (&[1, 2, 3, 4], "F"),
        ];
        let wanted = pair_coalitions(&with_coalitions(steps.clone(), &singles));
        assert_eq!(wanted, [vec![3, 4], vec![3, 4, 5]]);
        assert!(pair_coalitions(&steps).is_empty(), "without roles there are no pairs");
    }

    #[test]
    fn sampled_orders_are_repeatable_permutations() {
        let orders = sampled_orders(&[1, 2, 3, 4], 5, 7);
        assert_eq!(orders, sampled_orders(&[1, 2, 3, 4], 5, 7));
        for mut order in orders {
            order.sort_unstable();
            assert_eq!(order, [1, 2, 3, 4]);
        }
    }
}
