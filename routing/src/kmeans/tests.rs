use std::ops::ControlFlow;

use proptest::prelude::*;
use rand::Rng;

use super::*;

fn quiet(_: RoutingProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn random_points(count: usize, dimension: usize, seed: u64) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count * dimension).map(|_| random.random::<f32>() * 2.0 - 1.0).collect()
}

/// Well separated blobs far from the origin; point i belongs to blob i % blobs.
fn blobs(count: usize, dimension: usize, blobs: usize) -> Vec<f32> {
    let centres: Vec<f32> = random_points(blobs, dimension, 1).iter().map(|v| 1000.0 + 50.0 * v).collect();
    let noise = random_points(count, dimension, 2);
    (0..count)
        .flat_map(|point| (0..dimension).map(move |d| (point, d)))
        .map(|(point, d)| centres[point % blobs * dimension + d] + noise[point * dimension + d])
        .collect()
}

#[test]
fn recovers_separated_clusters() {
    let points = blobs(600, 12, 6);
    let found = kmeans(&points, 12, 6, &RouterConfig::default(), &mut quiet).unwrap();
    assert_eq!(found.sizes, [100; 6]);
    for point in 0..600 {
        assert_eq!(found.assignments[point], found.assignments[point % 6], "point {point}");
    }
    // The noise is uniform in [-1, 1]: its variance is 1/3 for each component.
    let variance = found.inertia / (600.0 * 12.0);
    assert!((0.30..0.36).contains(&variance), "{variance}");
}

#[test]
fn inertia_never_rises() {
    let points = random_points(500, 7, 3);
    let config = RouterConfig { tolerance: 0.0, ..RouterConfig::default() };
    let mut last = (usize::MAX, f64::INFINITY);
    let mut steps = 0;
    let found = kmeans(&points, 7, 20, &config, &mut |step| {
        if let RoutingProgress::KMeans { restart, inertia, .. } = step
            && inertia.is_finite()
        {
            assert!(restart != last.0 || inertia < last.1, "{inertia} after {last:?}");
            last = (restart, inertia);
            steps += 1;
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(steps > 8, "{steps}");
    assert!(found.sizes.iter().all(|&size| size > 0));
    assert_eq!(found.sizes.iter().sum::<u64>(), 500);
}

#[test]
fn a_cluster_for_each_point() {
    let points = random_points(40, 5, 4);
    let found = kmeans(&points, 5, 40, &RouterConfig::default(), &mut quiet).unwrap();
    assert_eq!(found.inertia, 0.0);
    assert_eq!(found.sizes, [1; 40]);
}

#[test]
fn duplicates_share_a_cluster() {
    let points: Vec<f32> = (0..90).flat_map(|i| [(i % 3) as f32, 1.0]).collect();
    let found = kmeans(&points, 2, 3, &RouterConfig::default(), &mut quiet).unwrap();
    assert_eq!(found.inertia, 0.0);
    assert_eq!(found.sizes, [30; 3]);
}

#[test]
fn more_clusters_than_different_points_is_an_error() {
    let points: Vec<f32> = (0..90).flat_map(|i| [(i % 3) as f32, 1.0]).collect();
    let error = kmeans(&points, 2, 4, &RouterConfig::default(), &mut quiet).unwrap_err();
    assert!(matches!(error, RoutingError::TooFewPoints { clusters: 4, points: 90, distinct: 3 }), "{error}");
    assert!(kmeans(&[], 2, 1, &RouterConfig::default(), &mut quiet).is_err());
    assert!(kmeans(&points, 2, 0, &RouterConfig::default(), &mut quiet).is_err());
}

#[test]
fn points_that_are_not_finite_are_named() {
    let mut points = random_points(10, 4, 5);
    points[4 * 7 + 2] = f32::NAN;
    let error = kmeans(&points, 4, 2, &RouterConfig::default(), &mut quiet).unwrap_err();
    assert!(matches!(error, RoutingError::NotFinite { index: 7, component: 2, .. }), "{error}");
    assert!(matches!(
        kmeans(&points, 3, 2, &RouterConfig::default(), &mut quiet),
        Err(RoutingError::Shape { .. })
    ));
    assert!(matches!(
        kmeans(&points, 0, 2, &RouterConfig::default(), &mut quiet),
        Err(RoutingError::Shape { .. })
    ));
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let points = random_points(1500, 33, 6);
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| kmeans(&points, 33, 13, &RouterConfig::default(), &mut quiet).unwrap())
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(5));
    let bits = |clustering: &Clustering| clustering.centroids.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&one), bits(&run(3)));
}

#[test]
fn another_seed_starts_elsewhere() {
    let points = random_points(300, 8, 7);
    let run = |seed| {
        let config = RouterConfig { seed, restarts: 1, ..RouterConfig::default() };
        kmeans(&points, 8, 9, &config, &mut quiet).unwrap().centroids
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn more_restarts_stay_near_the_lowest_inertia() {
    let points = random_points(400, 3, 8);
    let run = |restarts| {
        let config = RouterConfig { restarts, ..RouterConfig::default() };
        let mut lowest = f64::INFINITY;
        let found = kmeans(&points, 3, 25, &config, &mut |step| {
            if let RoutingProgress::KMeans { inertia, .. } = step {
                lowest = lowest.min(inertia);
            }
            ControlFlow::Continue(())
        });
        (found.unwrap().inertia, lowest)
    };
    let (first, _) = run(1);
    for restarts in 2..=8 {
        let (found, lowest) = run(restarts);
        assert!(found <= 1.05 * lowest && lowest <= first, "{restarts}: {found} {lowest} {first}");
    }
    assert!(run(8).1 < first);
}

#[test]
fn a_start_that_halves_a_large_cluster_is_chosen_over_one_that_isolates_few_points() {
    // A thousand points on a line of length 2, and 20 points beside its middle. To isolate the 20 has an inertia of 333, to halve
    // the line has 2 % more.
    let line = (0..1000).flat_map(|point| [point as f32 / 500.0, 0.0]);
    let beside = (0..20).flat_map(|point| [1.0 + 0.001 * point as f32, 3.65]);
    let points: Vec<f32> = line.chain(beside).collect();
    let starts: Vec<Vec<u64>> = (0..8)
        .map(|seed| {
            let config = RouterConfig { seed, restarts: 1, ..RouterConfig::default() };
            let mut sizes = kmeans(&points, 2, 2, &config, &mut quiet).unwrap().sizes;
            sizes.sort_unstable();
            sizes
        })
        .collect();
    assert!(starts.contains(&vec![20, 1000]) && starts.iter().any(|sizes| sizes[0] > 400), "{starts:?}");
    let config = RouterConfig { restarts: 8, ..RouterConfig::default() };
    let sizes = kmeans(&points, 2, 2, &config, &mut quiet).unwrap().sizes;
    assert!(sizes.iter().all(|&size| size > 400), "{sizes:?}");
}

#[test]
fn stops_on_request() {
    let points = random_points(100, 3, 9);
    let mut stop = |_| ControlFlow::Break(());
    let error = kmeans(&points, 3, 5, &RouterConfig::default(), &mut stop).unwrap_err();
    assert!(matches!(error, RoutingError::Cancelled));
}

#[test]
fn empty_clusters_take_the_farthest_point_of_the_largest() {
    let assigned = |assignments: &[u32], distances: &[f64], sizes: &[u64]| NearestCentroids {
        assignments: assignments.to_vec(),
        distances: distances.to_vec(),
        sums: Vec::new(),
        sizes: sizes.to_vec(),
    };
    let distances = [1.0, 9.0, 0.0, 4.0, 100.0, 100.0];
    let moves = refill_empty(&assigned(&[0, 0, 0, 0, 2, 2], &distances, &[4, 0, 2, 0]));
    assert_eq!(moves, [Move { point: 1, from: 0, to: 1 }, Move { point: 3, from: 0, to: 3 }]);
    // Points that all lie on their centroid have nothing to give.
    assert_eq!(refill_empty(&assigned(&[0, 0, 0], &[0.0; 3], &[3, 0])), []);
    // The centroid of the donor is the mean of its remaining points.
    let points = [0.0, 1.0, 8.0, 30.0];
    let mut state = State {
        centroids: vec![3.0, 30.0, 99.0],
        assigned: assigned(&[0, 0, 0, 1], &[9.0, 4.0, 25.0, 0.0], &[3, 1, 0]),
        inertia: 38.0,
    };
    state.assigned.sums = vec![9.0, 30.0, 0.0];
    assert_eq!(next_centroids(&points, 1, &state), [0.5, 30.0, 8.0]);
}

#[test]
fn many_points_are_seeded_from_a_sample() {
    let points = blobs(4000, 5, 6);
    let config = RouterConfig { restarts: 2, ..RouterConfig::default() };
    let found = kmeans(&points, 5, 6, &config, &mut quiet).unwrap();
    assert_eq!(found.sizes.iter().max(), Some(&667));
    // Hardly any point differs, and no sample of 512 has both of them.
    let mut few = vec![1.0; 20_000];
    few[7] = 2.0;
    let found = kmeans(&few, 1, 2, &config, &mut quiet).unwrap();
    assert_eq!((found.inertia, found.sizes.iter().min()), (0.0, Some(&1)));
}

proptest! {
    /// The blocked search agrees with the definition, ties and far origins included.
    #[test]
    fn the_search_is_exact(
        points in prop::collection::vec(-3i8..3, 1..200),
        centroids in prop::collection::vec(-3i8..3, 1..60),
        dimension in 1usize..9,
        scale in prop::sample::select(vec![1f32, 1e-18, 1e15, 1e25]),
        offset in prop::sample::select(vec![0f32, 1e4]),
    ) {
        let spread = |values: &[i8]| -> Vec<f32> {
            let whole = values.len() / dimension * dimension;
            values[..whole].iter().map(|&v| (f32::from(v) + offset) * scale).collect()
        };
        let (points, centroids) = (spread(&points), spread(&centroids));
        prop_assume!(!centroids.is_empty());
        let mean = vec![offset * scale; dimension];
        let NearestCentroids { assignments, distances, sums, sizes } =
            CentroidSearch::new(&centroids, dimension, &mean).assign(&points);
        for (index, point) in points.chunks_exact(dimension).enumerate() {
            let mut best = (0, f64::INFINITY);
            for (cluster, centroid) in centroids.chunks_exact(dimension).enumerate() {
                let distance = squared_distance(point, centroid);
                if distance < best.1 {
                    best = (cluster as u32, distance);
                }
            }
            prop_assert_eq!((assignments[index], distances[index]), best);
        }
        for cluster in 0..sizes.len() {
            let own = || (0..assignments.len()).filter(|&point| assignments[point] as usize == cluster);
            prop_assert_eq!(sizes[cluster], own().count() as u64);
            for d in 0..dimension {
                let sum: f64 = own().map(|point| f64::from(points[point * dimension + d])).sum();
                prop_assert_eq!(sums[cluster * dimension + d], sum);
            }
        }
    }
}
