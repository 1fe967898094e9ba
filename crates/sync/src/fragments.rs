//! Cutting a module into fragments.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Rule that assigns tensors of a module to fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Every F-th group of tensors: the layers of a fragment lie far apart (arXiv:2501.18512 §2.2).
    #[default]
    Strided,
    /// Consecutive groups of tensors.
    Sequential,
    /// Fragments of sizes as equal as whole tensors allow: the largest tensor left goes to the smallest fragment
    /// (arXiv:2604.21428). The largest fragment has at most 4/3 of the least possible size.
    Balanced,
}

/// A tensor of a module, as cutting sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSize {
    /// Name of the tensor. It breaks ties between tensors of one size.
    pub name: String,
    /// Its length in values.
    pub values: usize,
    /// Number of its group, such as a transformer block. Tensors of a group follow each other and stay together,
    /// except with [`Pattern::Balanced`].
    pub group: usize,
}

/// A module that cannot be cut into fragments.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "a module of {parts} parts can't be cut into {fragments} fragments: take fewer, or the pattern \"balanced\", which cuts between any two tensors"
)]
pub struct FragmentsError {
    /// Number of groups that stay together.
    pub parts: usize,
    /// Configured number of fragments.
    pub fragments: u32,
}

/// For each fragment the indices of its tensors, ascending. Every tensor is in one fragment, and no fragment is empty.
/// The result depends only on the arguments.
///
/// # Errors
/// When the module has fewer groups than fragments.
pub fn cut(
    tensors: &[TensorSize],
    fragments: u32,
    pattern: Pattern,
) -> Result<Vec<Vec<usize>>, FragmentsError> {
    let count = fragments as usize;
    let mut groups: Vec<usize> = tensors.iter().map(|tensor| tensor.group).collect();
    groups.dedup();
    let parts = if pattern == Pattern::Balanced { tensors.len() } else { groups.len() };
    if count == 0 || count > parts {
        return Err(FragmentsError { parts, fragments });
    }
    let mut cut = vec![Vec::new(); count];
    if pattern == Pattern::Balanced {
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(tensors[i].values), &tensors[i].name, i));
        let mut sizes = vec![(0usize, 0usize); count];
        for (i, fragment) in sizes.iter_mut().enumerate() {
            fragment.1 = i;
        }
        for i in order {
            // A fragment without a tensor comes first even when tensors have no values.
            let least = sizes.iter_mut().min_by_key(|(size, f)| (!cut[*f].is_empty(), *size, *f));
            if let Some((size, fragment)) = least {
                *size += tensors[i].values;
                cut[*fragment].push(i);
            }
        }
        cut.iter_mut().for_each(|fragment| fragment.sort_unstable());
    } else {
        let mut place = 0;
        for (i, tensor) in tensors.iter().enumerate() {
            place += usize::from(i > 0 && tensors[i - 1].group != tensor.group);
            let fragment =
                if pattern == Pattern::Strided { place % count } else { place * count / groups.len() };
            cut[fragment].push(i);
        }
    }
    Ok(cut)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tensors of these sizes, two to a group.
    fn tensors(sizes: &[usize]) -> Vec<TensorSize> {
        let tensor = |(i, &values)| TensorSize { name: format!("t{i}"), values, group: i / 2 };
        sizes.iter().enumerate().map(tensor).collect()
    }

    #[test]
    fn blocks_stay_together_in_turn_or_in_a_row() {
        let eight = tensors(&[1; 8]);
        assert_eq!(cut(&eight, 2, Pattern::Strided).unwrap(), [vec![0, 1, 4, 5], vec![2, 3, 6, 7]]);
        assert_eq!(cut(&eight, 2, Pattern::Sequential).unwrap(), [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        assert_eq!(cut(&eight, 3, Pattern::Sequential).unwrap(), [vec![0, 1, 2, 3], vec![4, 5], vec![6, 7]]);
        assert_eq!(cut(&eight, 1, Pattern::Strided).unwrap(), [(0..8).collect::<Vec<_>>()]);
        assert_eq!(cut(&eight, 5, Pattern::Strided).unwrap_err(), FragmentsError { parts: 4, fragments: 5 });
    }

    #[test]
    fn the_largest_tensor_goes_to_the_smallest_fragment() {
        let five = tensors(&[2, 7, 4, 5, 3]);
        // 7 | 5 | then 4 to 5's, 3 to 7's, 2 to 9's: 10 and 11.
        assert_eq!(cut(&five, 2, Pattern::Balanced).unwrap(), [vec![1, 4], vec![0, 2, 3]]);
    }

    proptest! {
        #[test]
        fn every_tensor_is_in_one_fragment(
            sizes in prop::collection::vec(0usize..50, 1..20),
            fragments in 0u32..25,
            pattern in prop::sample::select(vec![Pattern::Strided, Pattern::Sequential, Pattern::Balanced]),
        ) {
            let tensors = tensors(&sizes);
            if let Ok(cut) = cut(&tensors, fragments, pattern) {
                prop_assert_eq!(cut.len(), fragments as usize);
                prop_assert!(cut.iter().all(|f| !f.is_empty() && f.windows(2).all(|pair| pair[0] < pair[1])));
                let mut all = cut.concat();
                all.sort_unstable();
                prop_assert_eq!(all, (0..sizes.len()).collect::<Vec<_>>());
                if pattern == Pattern::Balanced {
                    let size = |f: &Vec<usize>| f.iter().map(|&i| sizes[i]).sum::<usize>();
                    let largest = cut.iter().map(size).max().unwrap();
                    let least = (sizes.iter().sum::<usize>().div_ceil(cut.len())).max(*sizes.iter().max().unwrap());
                    // Against a lower bound of the optimum Graham's bound for any list order is 2 - 1/F.
                    prop_assert!(largest <= 2 * least);
                }
            } else {
                prop_assert!(fragments == 0 || fragments as usize > sizes.len().div_ceil(2));
            }
        }
    }
}
