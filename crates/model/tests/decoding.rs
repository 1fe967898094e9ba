//! Decoding with pages of keys and values, token by token and in pieces.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

mod support;

use dipaco_model::*;
use support::*;

#[test]
fn decoding_in_any_pieces_scores_as_the_training_pass() {
    for config in [config(false), grouped()] {
        decode_in_pieces(&config);
    }
}

fn decode_in_pieces(config: &ModelConfig) {
    let path = compose(config, &two_levels(), &weights(config), false);
    let (tokens, targets) = (tokens(), targets());
    let scores = path.token_log_probs(&batch()).unwrap();
    let mean = -scores.iter().sum::<f32>() / 20.0;
    assert!((mean - path.loss(&batch()).unwrap().mean).abs() < 1e-6);
    for pieces in [vec![12], vec![1; 12], vec![5, 1, 6], vec![11, 1]] {
        let mut decoder = Decoder::new(config, &two_levels(), &weights(config));
        let (mut logits, mut rest) = (Vec::new(), &tokens[..TIME]);
        for piece in pieces {
            logits.extend(decoder.append(&rest[..piece]).unwrap());
            rest = &rest[piece..];
        }
        for ((row, &target), score) in logits.chunks(64).zip(&targets).zip(&scores) {
            let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
            assert!((f64::from(row[target as usize]) - sum.ln() - f64::from(*score)).abs() < 1e-5);
        }
    }
}

#[test]
fn outputs_at_positions_are_those_of_decoding_and_do_not_depend_on_later_tokens() {
    let config = config(true).with_outputs(5);
    let path = compose(&config, &dense(), &weights(&config), false);
    assert_eq!(path_specs(&config).last().unwrap().shape, [5, 32]);
    let mut tokens = tokens();
    let found = path.position_logits(&rows(&tokens, BATCH), &[4, 7]).unwrap();
    assert_eq!(found.len(), BATCH * 2 * 5);
    for (row, found) in tokens.chunks_exact(TIME).zip(found.chunks_exact(10)) {
        let all = Decoder::new(&config, &dense(), &weights(&config)).append(row).unwrap();
        for (at, found) in [4, 7].into_iter().zip(found.chunks_exact(5)) {
            let expected = &all[at * 5..][..5];
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{found:?} {expected:?}");
        }
    }
    tokens[8..TIME].fill(1);
    tokens[TIME + 8..].fill(2);
    let tokens = rows(&tokens, BATCH);
    assert_eq!(path.position_logits(&tokens, &[4, 7]).unwrap(), found);
    assert!(path.position_logits(&tokens, &[TIME]).is_err());
    let gradients = compose(&config, &dense(), &weights(&config), true);
    let batch = batch_of(tokens.ids(), &[4; BATCH * TIME], BATCH, 64, 5);
    let (loss, _) = gradients.gradients(&batch, BATCH).unwrap();
    assert_eq!(loss.mean, path.loss(&batch).unwrap().mean);
    let six = batch_of(tokens.ids(), &[4; BATCH * TIME], BATCH, 64, 6);
    assert!(path.loss(&six).is_err(), "there is no output 5");
}
