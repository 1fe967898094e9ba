use super::*;
use crate::DocumentLoss;
use crate::evaluation::Totals;

/// A result with these losses on documents of so many bytes.
fn evaluation(losses: impl IntoIterator<Item = (u64, f64, u64)>) -> Evaluation {
    let loss = |(document, nll_sum, bytes)| DocumentLoss { document, nll_sum, bytes };
    let some = Totals { documents: 1, sequences: 1, tokens: 1, nll: 1.0, bytes: 1 };
    let mut evaluation = some.finish(0, 8).unwrap();
    evaluation.document_losses = losses.into_iter().map(loss).collect();
    evaluation
}

/// Two models on 400 documents: the second has a hundredth of a nat a byte more, and noise of its own.
fn pair() -> [Evaluation; 2] {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let documents: Vec<(u64, f64, f64, u64)> = (0..400)
        .map(|document| {
            let bytes = random.random_range(100..4000);
            let nll = bytes as f64 * random.random_range(0.5..1.5);
            (document, nll, bytes as f64 * random.random_range(0.0..0.02), bytes)
        })
        .collect();
    let ours = documents.iter().map(|&(document, nll, _, bytes)| (document, nll, bytes));
    let theirs = documents.iter().map(|&(document, nll, more, bytes)| (document, nll + more, bytes));
    [evaluation(ours), evaluation(theirs)]
}

#[test]
fn the_interval_is_of_the_difference_and_not_of_the_documents() {
    let [model, base] = pair();
    let found = PairedDifference::between(&model, &base).unwrap();
    let bits = |evaluation: &Evaluation| {
        let losses = &evaluation.document_losses;
        let nll: f64 = losses.iter().map(|loss| loss.nll_sum).sum();
        nll / losses.iter().map(|loss| loss.bytes).sum::<u64>() as f64 / std::f64::consts::LN_2
    };
    assert!((found.bits_per_byte - (bits(&model) - bits(&base))).abs() < 1e-12, "{found:?}");
    // The losses of the documents differ a hundred times as much as the models.
    assert!(found.low < found.bits_per_byte && found.bits_per_byte < found.high, "{found:?}");
    assert!(found.high < -0.012 && found.low > -0.017, "{found:?}");
    let back = PairedDifference::between(&base, &model).unwrap();
    assert!(
        (back.low + found.high).abs() < 1e-3 && (back.high + found.low).abs() < 1e-3,
        "{back:?} {found:?}"
    );
    assert_eq!(PairedDifference::between(&model, &base), Some(found), "the same bits again");
}

/// The standard error of a difference of 400 documents is known: the interval is 1.96 of it to each side.
#[test]
fn the_interval_is_as_wide_as_the_standard_error_says() {
    let [model, base] = pair();
    let found = PairedDifference::between(&model, &base).unwrap();
    let pairs = model.document_losses.iter().zip(&base.document_losses);
    let pairs: Vec<(f64, f64)> = pairs.map(|(a, b)| (a.nll_sum - b.nll_sum, a.bytes as f64)).collect();
    let bytes: f64 = pairs.iter().map(|pair| pair.1).sum();
    let rate = pairs.iter().map(|pair| pair.0).sum::<f64>() / bytes;
    let squares: f64 = pairs.iter().map(|(nats, bytes)| (nats - rate * bytes).powi(2)).sum();
    let expected = 2.0 * 1.96 * squares.sqrt() / bytes / std::f64::consts::LN_2;
    assert!(((found.high - found.low) / expected - 1.0).abs() < 0.1, "{found:?}, {expected}");
}

#[test]
fn models_of_other_text_are_not_compared() {
    let one = || evaluation([(1, 5.0, 10), (2, 6.0, 10)]);
    let same = PairedDifference::between(&one(), &one()).unwrap();
    assert_eq!((same.bits_per_byte, same.low, same.high), (0.0, 0.0, 0.0));
    for other in [
        evaluation([]),
        evaluation([(1, 5.0, 10)]),
        evaluation([(1, 5.0, 10), (3, 6.0, 10)]),
        evaluation([(1, 5.0, 10), (2, 6.0, 11)]),
    ] {
        assert_eq!(PairedDifference::between(&one(), &other), None);
    }
    let single = || evaluation([(1, 5.0, 10)]);
    assert_eq!(PairedDifference::between(&single(), &single()), None, "one document has no interval");
    let unknown = || evaluation([(1, 5.0, 0), (2, 6.0, 0)]);
    assert_eq!(PairedDifference::between(&unknown(), &unknown()), None);
}
