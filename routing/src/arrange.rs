//! Which path gets which cluster: paths that share a module get clusters near each other.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Stream of the random generator for the first orders; k-means uses the streams from 0 up, and the sample the last one.
const STREAM: u64 = u64::MAX - 1;
/// Independent starts; the best one wins.
const STARTS: u32 = 8;
/// Least gain of an exchange, and of an order over that of the numbers, as a share of the nearness: above rounding errors.
const LEAST_GAIN: f64 = 1e-9;
/// Most exchanges that are tried in a start. With 4,096 paths it is one look at each pair.
const MOST_TRIES: u64 = 1 << 23;

/// Places clusters on a grid of paths so that the clusters of the paths through a module are near each other: the sum, over
/// all modules, of the squared distances between the centroids of a module's paths and their mean is small.
///
/// `centroids` (P, D) are row-major; `radices` are those of the last digits of a path's number, level by level. Paths that differ
/// only in a digit before them are replicas, and have the same modules. Returns the cluster of each path (P).
/// From a random order, two paths exchange their clusters wherever this lowers the sum, until no exchange does. The order is a
/// function of the arguments.
pub(crate) fn arrange(centroids: &[f32], dimension: usize, radices: &[u32], seed: u64) -> Vec<u32> {
    let paths = centroids.len().checked_div(dimension).unwrap_or(0);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(STREAM);
    let by_number: Vec<u32> = (0..paths as u32).collect();
    let mut best: Option<Arrangement<'_>> = None;
    for _ in 0..STARTS {
        let mut order = by_number.clone();
        order.shuffle(&mut random);
        let mut found = Arrangement::new(centroids, dimension, radices, order);
        found.improve();
        if best.as_ref().is_none_or(|best| found.nearness() > best.nearness()) {
            best = Some(found);
        }
    }
    // Without modules that paths share, all orders are equally good.
    let by_number = Arrangement::new(centroids, dimension, radices, by_number);
    let better = |found: &Arrangement<'_>| found.nearness() > by_number.nearness() * (1.0 + LEAST_GAIN);
    best.filter(better).unwrap_or(by_number).order
}

/// Clusters on a grid of paths.
struct Arrangement<'a> {
    /// (P, D), row-major.
    centroids: &'a [f32],
    dimension: usize,
    levels: Vec<Level>,
    /// The cluster of each path (P).
    order: Vec<u32>,
}

/// The modules of a level.
struct Level {
    /// K.
    modules: usize,
    /// Product of the radices of the levels below: a path's module is its number over this, modulo K.
    below: usize,
    /// Sum of the centroids of the paths through each module (K, D).
    sums: Vec<f64>,
}

impl Level {
    fn module(&self, path: usize) -> usize {
        path / self.below % self.modules
    }

    fn sum(&self, module: usize, dimension: usize) -> &[f64] {
        &self.sums[module * dimension..][..dimension]
    }
}

impl<'a> Arrangement<'a> {
    fn new(centroids: &'a [f32], dimension: usize, radices: &[u32], order: Vec<u32>) -> Self {
        let mut below: usize = radices.iter().map(|&modules| modules as usize).product();
        let levels = radices.iter().map(|&modules| {
            let modules = modules as usize;
            below /= modules;
            let mut level = Level { modules, below, sums: vec![0.0; modules * dimension] };
            for (path, &cluster) in order.iter().enumerate() {
                let module = level.module(path);
                let centroid = &centroids[cluster as usize * dimension..][..dimension];
                let sum = &mut level.sums[module * dimension..][..dimension];
                sum.iter_mut().zip(centroid).for_each(|(sum, value)| *sum += f64::from(*value));
            }
            level
        });
        Self { levels: levels.collect(), centroids, dimension, order }
    }

    /// The sum over all modules of the squared length of the sum of their centroids, over their number of paths. The squared
    /// distances from the means are a constant less this.
    fn nearness(&self) -> f64 {
        let of_level = |level: &Level| {
            let squares: f64 = level.sums.iter().map(|value| value * value).sum();
            squares * level.modules as f64
        };
        self.levels.iter().map(of_level).sum::<f64>() / self.order.len() as f64
    }

    /// Exchanges clusters until no exchange of two paths helps.
    fn improve(&mut self) {
        let paths = self.order.len();
        let least = LEAST_GAIN * self.nearness();
        let mut tries = 0;
        loop {
            let mut exchanged = false;
            for first in 0..paths {
                for second in first + 1..paths {
                    tries += 1;
                    if tries > MOST_TRIES {
                        return;
                    }
                    let step = self.step(first, second);
                    if self.gain(first, second, &step) > least {
                        self.exchange(first, second, &step);
                        exchanged = true;
                    }
                }
            }
            if !exchanged {
                return;
            }
        }
    }

    /// The centroid (D) of the second path less that of the first.
    fn step(&self, first: usize, second: usize) -> Vec<f64> {
        let centroid =
            |path: usize| &self.centroids[self.order[path] as usize * self.dimension..][..self.dimension];
        let pairs = centroid(first).iter().zip(centroid(second));
        pairs.map(|(first, second)| f64::from(*second) - f64::from(*first)).collect()
    }

    /// What an exchange of the clusters of two paths adds to the nearness.
    fn gain(&self, first: usize, second: usize, step: &[f64]) -> f64 {
        let squares: f64 = step.iter().map(|value| value * value).sum();
        let of_level = |level: &Level| {
            let (from, to) = (level.module(first), level.module(second));
            if from == to {
                return 0.0;
            }
            let sums = level.sum(from, self.dimension).iter().zip(level.sum(to, self.dimension));
            let along: f64 = sums.zip(step).map(|((from, to), step)| (from - to) * step).sum();
            2.0 * (along + squares) * level.modules as f64
        };
        self.levels.iter().map(of_level).sum::<f64>() / self.order.len() as f64
    }

    fn exchange(&mut self, first: usize, second: usize, step: &[f64]) {
        for level in &mut self.levels {
            let (from, to) = (level.module(first), level.module(second));
            for (at, step) in step.iter().enumerate() {
                level.sums[from * self.dimension + at] += step;
                level.sums[to * self.dimension + at] -= step;
            }
        }
        self.order.swap(first, second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of the squared distances between centroids and the means of their modules, by its definition.
    fn spread(centroids: &[f32], dimension: usize, radices: &[u32], order: &[u32]) -> f64 {
        let mut total = 0.0;
        let mut below = order.len();
        for &modules in radices {
            below /= modules as usize;
            for module in 0..modules as usize {
                let members: Vec<&[f32]> = (0..order.len())
                    .filter(|path| path / below % modules as usize == module)
                    .map(|path| &centroids[order[path] as usize * dimension..][..dimension])
                    .collect();
                for component in 0..dimension {
                    let values = || members.iter().map(|member| f64::from(member[component]));
                    let mean = values().sum::<f64>() / members.len() as f64;
                    total += values().map(|value| (value - mean).powi(2)).sum::<f64>();
                }
            }
        }
        total
    }

    #[test]
    fn clusters_of_a_lattice_find_their_rows_and_columns() {
        // The centroid of path (i, j) is (i, 10 j), under shuffled numbers.
        let mut numbers: Vec<u32> = (0..16).collect();
        numbers.shuffle(&mut ChaCha8Rng::seed_from_u64(3));
        let centroids: Vec<f32> =
            numbers.iter().flat_map(|&n| [(n / 4) as f32, 10.0 * (n % 4) as f32]).collect();
        let order = arrange(&centroids, 2, &[4, 4], 7);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..16).collect::<Vec<_>>(), "each path has a cluster of its own");
        // Rows and columns of the lattice: 4 × 4 × (spread of 0 to 3) in one level, a hundred times that in the other.
        let best = 4.0 * 5.0 * 101.0;
        assert!((spread(&centroids, 2, &[4, 4], &order) - best).abs() < 1e-3);
        assert_eq!(order, arrange(&centroids, 2, &[4, 4], 7), "a function of its arguments");
    }

    #[test]
    fn clusters_keep_their_numbers_where_no_order_is_better() {
        let centroids: Vec<f32> = (0..24).map(|n| ((n * 37 + 11) % 29) as f32).collect();
        let by_number: Vec<u32> = (0..12).collect();
        assert_eq!(arrange(&centroids, 2, &[12], 7), by_number, "no path shares a module");
        let lattice: Vec<f32> = (0..12u8).flat_map(|n| [f32::from(n / 4), 10.0 * f32::from(n % 4)]).collect();
        assert_eq!(arrange(&lattice, 2, &[3, 4], 7), by_number, "arranged by chance");
    }

    #[test]
    fn replicas_get_clusters_near_each_other() {
        // Paths 0 and 2 have one module, and paths 1 and 3 the other.
        let order = arrange(&[0.0, 1.0, 100.0, 101.0], 1, &[2], 7);
        let pair = |path: usize| order[path] / 2;
        assert_eq!((pair(0), pair(1)), (pair(2), pair(3)), "{order:?}");
        assert_ne!(pair(0), pair(1), "{order:?}");
    }

    #[test]
    fn the_gain_of_an_exchange_is_what_it_takes_from_the_distances() {
        let centroids: Vec<f32> = (0..24).map(|n| ((n * 37 + 11) % 29) as f32).collect();
        let radices = [2, 1, 3, 2];
        let spread = |order: &[u32]| spread(&centroids, 2, &radices, order);
        let mut found = Arrangement::new(&centroids, 2, &radices, (0..12).collect());
        for (first, second) in [(0, 11), (3, 4), (1, 7), (5, 6), (2, 2)] {
            let (before, near) = (spread(&found.order), found.nearness());
            let step = found.step(first, second);
            let gain = found.gain(first, second, &step);
            found.exchange(first, second, &step);
            assert!((before - spread(&found.order) - gain).abs() < 1e-6, "{first} {second}");
            assert!((found.nearness() - near - gain).abs() < 1e-6, "{first} {second}");
        }
        let before = spread(&found.order);
        found.improve();
        assert!(spread(&found.order) < before);
    }
}
