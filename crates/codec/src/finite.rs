//! The check that values are numbers.

/// Values that are looked at together.
const BLOCK: usize = 4096;

/// The place of the first NaN or infinity; `None` if all values are finite.
///
/// ```
/// assert_eq!(dipaco_codec::first_not_finite(&[1.0, f32::NAN, f32::INFINITY]), Some(1));
/// assert_eq!(dipaco_codec::first_not_finite(&[f32::MAX, -0.0]), None);
/// ```
#[must_use]
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    // Without an end at the first such value: a loop that may end early does not become vector code.
    let all_finite = |block: &[f32]| block.iter().fold(true, |all, value| all & value.is_finite());
    let begin = BLOCK * values.chunks(BLOCK).position(|block| !all_finite(block))?;
    let within = values[begin..].iter().position(|value| !value.is_finite())?;
    Some(begin + within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_that_is_no_number_is_found_in_every_place() {
        let numbers = [0.0, -0.0, 1.5, f32::MAX, f32::MIN, f32::from_bits(1), f32::MIN_POSITIVE];
        let length = 2 * BLOCK + 3;
        let mut values: Vec<f32> = numbers.into_iter().cycle().take(length).collect();
        assert_eq!(first_not_finite(&values), None);
        assert_eq!(first_not_finite(&[]), None);
        for (at, wrong) in [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK, length - 1]
            .into_iter()
            .zip([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN].into_iter().cycle())
        {
            let kept = (values[at], values[length - 1]);
            // The last value is wrong, too.
            (values[length - 1], values[at]) = (f32::NAN, wrong);
            assert_eq!(first_not_finite(&values), Some(at), "{wrong} at {at}");
            (values[at], values[length - 1]) = kept;
        }
        assert_eq!(first_not_finite(&values), None);
    }
}
