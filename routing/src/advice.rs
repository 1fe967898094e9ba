//! Warnings of a text that is divided badly. They name what the kind of the router and its features leave to change.

use crate::{FeatureKind, RouterKind};

/// A path with more than this share of the documents and more than [`DOMINANT_TIMES`] equal shares causes a warning.
const DOMINANT_SHARE: f64 = 0.5;
/// See [`DOMINANT_SHARE`].
const DOMINANT_TIMES: f64 = 2.0;

/// What may divide a text better than a router of this kind with these features: settings, and the seed where features come
/// from it.
pub(crate) fn better_division(kind: RouterKind, features: FeatureKind) -> &'static str {
    match (kind, features) {
        (RouterKind::KMeans, FeatureKind::Lsa) => {
            "routing.kind = \"product-kmeans\", a longer routing.prefix_tokens or routing.features = \"seed\""
        }
        (RouterKind::KMeans, FeatureKind::Seed) => {
            "routing.kind = \"product-kmeans\", a longer routing.prefix_tokens or a better seed model"
        }
        (RouterKind::ProductKMeans, FeatureKind::Lsa) => {
            "a longer routing.prefix_tokens or routing.features = \"seed\""
        }
        (RouterKind::ProductKMeans, FeatureKind::Seed) => {
            "a longer routing.prefix_tokens or a better seed model"
        }
        (RouterKind::Discriminative, FeatureKind::Lsa) => {
            "a larger routing.router_share, a longer routing.prefix_tokens or routing.features = \"seed\""
        }
        (RouterKind::Discriminative, FeatureKind::Seed) => {
            "a larger routing.router_share, a longer routing.prefix_tokens or a better seed model"
        }
        (RouterKind::Labels, _) => "other labels (routing.labels)",
        (RouterKind::Random, _) => "another routing.kind",
    }
}

/// A warning when a router that is fitted on documents gives one path most of them, which leaves little text to the others.
/// `sizes` are the documents of each path (P).
pub(crate) fn dominance_warning(sizes: &[u64], kind: RouterKind, features: FeatureKind) -> Option<String> {
    let total: u64 = sizes.iter().sum();
    let (path, &largest) = sizes.iter().enumerate().max_by_key(|&(path, &size)| (size, usize::MAX - path))?;
    let share = largest as f64 / total.max(1) as f64;
    if share <= DOMINANT_SHARE || share * sizes.len() as f64 <= DOMINANT_TIMES {
        return None;
    }
    let documents = match kind {
        RouterKind::Discriminative => "reserved documents",
        _ => "documents that the router is fitted on",
    };
    Some(format!(
        "path {path} gets {:.1} % of the {total} {documents}: its domain dominates them, or features barely differ; use fewer \
         paths, {}",
        share * 100.0,
        better_division(kind, features)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dominant_path_is_told_with_its_share_of_the_documents_that_were_counted() {
        let warned = |sizes: &[u64], kind| dominance_warning(sizes, kind, FeatureKind::Lsa);
        assert_eq!(warned(&[5, 14, 3, 5], RouterKind::Discriminative), Some(
            "path 1 gets 51.9 % of the 27 reserved documents: its domain dominates them, or features barely differ; use fewer \
             paths, a larger routing.router_share, a longer routing.prefix_tokens or routing.features = \"seed\""
                .to_owned()
        ));
        let said = warned(&[5, 14, 3, 5], RouterKind::KMeans).unwrap();
        assert!(
            said.contains("27 documents that the router is fitted on") && said.contains("product-kmeans")
        );
        for even in [&[13, 14, 1, 2][..], &[3, 1], &[]] {
            assert_eq!(warned(even, RouterKind::KMeans), None, "{even:?}");
        }
    }

    #[test]
    fn a_seed_is_blamed_only_where_features_come_from_it() {
        use RouterKind::{Discriminative, KMeans, Labels, ProductKMeans};
        for kind in [KMeans, ProductKMeans, Discriminative] {
            let (lsa, seed) =
                (better_division(kind, FeatureKind::Lsa), better_division(kind, FeatureKind::Seed));
            assert!(!lsa.contains("seed model") && lsa.contains("routing.features"), "{lsa}");
            assert!(seed.contains("a better seed model"), "{seed}");
        }
        assert!(!better_division(ProductKMeans, FeatureKind::Lsa).contains("routing.kind"));
        assert_eq!(better_division(Labels, FeatureKind::Seed), "other labels (routing.labels)");
    }
}
