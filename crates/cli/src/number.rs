//! The values of options that are numbers with a fraction.

/// Reads a number above 0.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("it must be a number above 0".to_owned()),
    }
}

/// Reads a number of seconds from 0 to a day.
pub(crate) fn up_to_a_day(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("it must be a number of seconds from 0 to 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_above_0_is_finite() {
        assert_eq!((positive("2.5"), positive("1e-9")), (Ok(2.5), Ok(1e-9)));
        for wrong in ["0", "-0", "-1", "nan", "inf", "", "a"] {
            assert_eq!(positive(wrong), Err("it must be a number above 0".to_owned()), "{wrong}");
        }
    }

    #[test]
    fn seconds_go_up_to_a_day() {
        assert_eq!((up_to_a_day("0"), up_to_a_day("86400")), (Ok(0.0), Ok(86_400.0)));
        for wrong in ["-1", "86400.1", "nan", "", "a"] {
            assert!(up_to_a_day(wrong).is_err_and(|message| message.contains("from 0 to 86400")), "{wrong}");
        }
    }
}
