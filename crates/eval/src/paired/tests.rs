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
    let documents = (0..400_u64).map(|document| {
        let bytes = 100 + document * 977 % 3900;
        let nll = bytes as f64 * (0.5 + (document * 617 % 1000) as f64 / 1000.0);
        let more = bytes as f64 * (document * 379 % 1000) as f64 / 50_000.0;
        (document, nll, more, bytes)
    });
    let ours = documents.clone().map(|(document, nll, _, bytes)| (document, nll, bytes));
    let theirs = documents.map(|(document, nll, more, bytes)| (document, nll + more, bytes));
    [evaluation(ours), evaluation(theirs)]
}

/// Checks a difference and both ends of its interval.
fn assert_near(found: PairedDifference, expected: [f64; 3]) {
    let found = [found.bits_per_byte, found.low, found.high];
    let near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-10);
    assert!(near, "{found:?} in place of {expected:?}");
}

// The expected values of the next two tests are r and r ± t · √(n / (n - 1) · Σ(d - r · b)²) / Σb, divided by ln 2.
// Here d is the difference of the losses on one of n documents, b its bytes, r = Σd / Σb, and
// t = scipy.stats.t.ppf(0.975, n - 1).

#[test]
fn the_interval_is_of_the_difference_and_not_of_the_documents() {
    let [model, base] = pair();
    let found = PairedDifference::between(&model, &base).unwrap();
    let bits = |evaluation: &Evaluation| {
        let losses = &evaluation.document_losses;
        let nll: f64 = losses.iter().map(|loss| loss.nll_sum).sum();
        nll / losses.iter().map(|loss| loss.bytes).sum::<u64>() as f64 / LN_2
    };
    assert!((found.bits_per_byte - (bits(&model) - bits(&base))).abs() < 1e-12, "{found:?}");
    // The losses of the documents differ a hundred times as much as the models.
    assert_near(found, [-0.014_341_344_864, -0.015_281_242_486, -0.013_401_447_242]);
    let back = PairedDifference::between(&base, &model).unwrap();
    assert_near(back, [-found.bits_per_byte, -found.high, -found.low]);
    assert_eq!(PairedDifference::between(&model, &base), Some(found), "the same bits again");
}

#[test]
fn the_interval_of_few_documents_is_as_wide_as_students_t_says() {
    let base = evaluation([(1, 90.0, 100), (2, 236.0, 300)]);
    let model = evaluation([(1, 80.0, 100), (2, 230.0, 300)]);
    let two = PairedDifference::between(&model, &base).unwrap();
    assert_near(two, [-0.057_707_801_636, -0.607_643_158_478, 0.492_227_555_206]);

    let bytes = [80, 150, 300, 100, 520, 40, 200, 610];
    let of = |nats: [f64; 8]| {
        evaluation((0..).zip(nats).zip(bytes).map(|((document, nats), bytes)| (document, nats, bytes)))
    };
    let base = of([70.0, 112.0, 251.0, 74.0, 430.0, 36.0, 163.0, 520.0]);
    let model = of([62.5, 110.0, 240.0, 75.0, 410.0, 33.0, 150.0, 505.0]);
    let eight = PairedDifference::between(&model, &base).unwrap();
    assert_near(eight, [-0.050_855_000_191, -0.072_149_105_099, -0.029_560_895_283]);
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
