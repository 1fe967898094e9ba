//! Arguments that do not fit give an error that names them, never a panic.

use candle_core::{DType, Device, Tensor};
use dipaco_ops::{
    self as ops, Backward, EmbeddingPlace, GradientSlot, HeadPlace, HeadSlots, OpsError, Precision,
    RopeTable, Stack,
};

use crate::reference::Sizes;
use crate::support::*;

const SIZES: Sizes = Sizes { batch: 2, time: 3, width: 6, heads: 2, kv_heads: 2, head_dim: 2, ffn: 5 };

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

fn slot(length: usize) -> GradientSlot {
    GradientSlot::new(&ops::Workspace::default(), length)
}

fn is_shape<T>(operation: &str, result: Result<T, OpsError>) -> bool {
    matches!(result, Err(OpsError::Shape { operation: found, .. }) if found == operation)
}

#[test]
fn embeddings() {
    let w = zeros(&[24]);
    let place = |at, vocabulary, width| EmbeddingPlace { at, vocabulary, width };
    let good = place(0, 6, 4);
    let embed = |place, vocabulary, slot: Option<&GradientSlot>| {
        ops::embedding(&w, place, &token_rows(&[0], 1, vocabulary), slot)
    };
    assert!(embed(good, 6, None).is_ok());
    assert!(embed(good, 5, None).is_ok());
    // The ids are in the table, but others of their vocabulary would not be.
    for ids in [7, usize::MAX] {
        let result = embed(good, ids, None);
        assert!(
            matches!(result, Err(OpsError::Vocabulary { ids: found, entries: 6, .. }) if found == ids),
            "{ids}"
        );
    }
    assert!(matches!(embed(place(0, 0, 4), 1, None), Err(OpsError::Vocabulary { entries: 0, .. })));
    for place in [place(1, 6, 4), place(usize::MAX, 6, 4), place(0, usize::MAX, 4), place(0, 6, 0)] {
        assert!(is_shape("embedding", embed(place, 6, None)), "{place:?}");
    }
    assert!(is_shape("embedding", embed(good, 6, Some(&slot(23)))));
    let rows = token_rows(&[0], 1, 6);
    assert!(is_shape("embedding", ops::embedding(&zeros(&[6, 4]), good, &rows, None)));
    let wide = Tensor::zeros(24, DType::F64, &Device::Cpu).unwrap();
    assert!(matches!(ops::embedding(&wide, good, &rows, None), Err(OpsError::Tensor(_))));
}

#[test]
fn blocks() {
    let good = stack(&SIZES, Precision::F32, false);
    let parameters = SIZES.parameters();
    let w = zeros(&[2 * parameters]);
    let run = |x: &Tensor, stack: &Stack, at, count, slots: Option<&[GradientSlot]>| {
        ops::blocks(x, &w, at, count, stack, slots.map_or(Backward::Nothing, Backward::All))
    };
    let x = zeros(&[2, 3, 6]);
    assert!(run(&x, &good, 0, 2, None).is_ok());
    for bad in [&[2, 3, 5][..], &[2, 4, 6], &[0, 3, 6], &[2, 0, 6]] {
        assert!(is_shape("blocks", run(&zeros(bad), &good, 0, 1, None)), "{bad:?}");
    }
    assert!(run(&zeros(&[3, 6]), &good, 0, 1, None).is_err(), "no batch");
    for (at, count) in [(0, 0), (1, 2), (0, 3), (0, usize::MAX), (usize::MAX, 1)] {
        assert!(is_shape("blocks", run(&x, &good, at, count, None)), "{count} from {at}");
    }
    let slots = |lengths: &[usize]| lengths.iter().map(|&length| slot(length)).collect::<Vec<_>>();
    for lengths in [&[][..], &[parameters], &[parameters, parameters - 1], &[parameters; 3]] {
        assert!(is_shape("blocks", run(&x, &good, 0, 2, Some(&slots(lengths)))), "{lengths:?}");
    }
    for change in [
        |stack: &mut Stack| stack.shape.heads = 0,
        |stack: &mut Stack| stack.shape.ffn = 0,
        |stack: &mut Stack| stack.shape.ffn = usize::MAX,
        |stack: &mut Stack| stack.shape.heads = usize::MAX,
        |stack: &mut Stack| stack.shape.kv_heads = 0,
        |stack: &mut Stack| stack.shape.kv_heads = usize::MAX,
        |stack: &mut Stack| (stack.shape.heads, stack.shape.kv_heads) = (3, 2),
    ] {
        let mut bad = good.clone();
        change(&mut bad);
        assert!(is_shape("blocks", run(&x, &bad, 0, 1, None)), "{:?}", bad.shape);
    }
    let turned = zeros(&[6, 3, 2]).transpose(0, 2).unwrap();
    assert!(matches!(run(&turned, &good, 0, 1, None), Err(OpsError::Tensor(_))), "not contiguous");
    assert!(is_shape("blocks", ops::blocks(&x, &zeros(&[2, parameters]), 0, 1, &good, Backward::Nothing)));
}

#[test]
fn heads() {
    let stack = stack(&SIZES, Precision::F32, false);
    let place = |norm, projection, vocabulary| HeadPlace { norm, projection, vocabulary };
    let good = place(0, 6, 4);
    let w = zeros(&[30]);
    let x = zeros(&[2, 3, 6]);
    let run = |x: &Tensor, place: &HeadPlace, targets: &[u32], slots: Option<&HeadSlots>| {
        let backward = slots.map_or(Backward::Nothing, Backward::All);
        ops::cross_entropy(x, &w, place, &stack, &targets_of(targets, 4), 1, backward)
    };
    assert!(run(&x, &good, &[3; 6], None).is_ok());
    let targets = targets_of(&[0; 6], 5);
    let result = ops::cross_entropy(&x, &w, &good, &stack, &targets, 1, Backward::Nothing);
    assert!(matches!(result, Err(OpsError::Vocabulary { ids: 5, entries: 4, .. })));
    let result = ops::token_log_probs(&x, &w, &good, &stack, &targets);
    assert!(matches!(result, Err(OpsError::Vocabulary { ids: 5, entries: 4, .. })));
    assert!(is_shape("cross_entropy", run(&x, &good, &[0; 5], None)));
    assert!(is_shape("cross_entropy", run(&zeros(&[2, 3, 5]), &good, &[0; 6], None)));
    for bad in [
        place(0, 6, 0),
        place(0, 6, 5),
        place(0, 7, 4),
        place(25, 6, 4),
        place(usize::MAX, 6, 4),
        place(0, 6, usize::MAX),
    ] {
        assert!(is_shape("cross_entropy", run(&x, &bad, &[0; 6], None)), "{bad:?}");
        let result = ops::token_log_probs(&x, &w, &bad, &stack, &targets_of(&[0; 6], 4));
        assert!(is_shape("token_log_probs", result), "{bad:?}");
    }
    let shared = slot(29);
    let slots = [
        HeadSlots { norm: shared.clone(), projection: shared },
        HeadSlots { norm: slot(6), projection: slot(30) },
        HeadSlots { norm: slot(30), projection: slot(24) },
    ];
    for slots in slots {
        assert!(is_shape("cross_entropy", run(&x, &good, &[0; 6], Some(&slots))));
    }
    let mut thin = stack.clone();
    thin.shape.width = 0;
    let result = ops::token_log_probs(&zeros(&[2, 3, 0]), &w, &good, &thin, &targets_of(&[0; 6], 4));
    assert!(is_shape("token_log_probs", result), "a width of 0");
}

#[test]
fn a_second_backward_pass() {
    for checkpointing in [false, true] {
        let stack = stack(&SIZES, Precision::F32, checkpointing);
        let weights = block_weights(1, &SIZES);
        let w = tensor(&weights, &[weights.len()]);
        let x = variable(&numbers(2, 36), &[2, 3, 6]);
        let passes = |refused: bool| {
            let own = GradientSlot::new(&stack.workspace, weights.len());
            let y = ops::blocks(&x, &w, 0, 1, &stack, Backward::All(std::slice::from_ref(&own))).unwrap();
            let objective = y.sum_all().unwrap();
            assert!(objective.backward().is_ok());
            if refused {
                let message = objective.backward().unwrap_err().to_string();
                assert!(message.contains("no forward pass"), "{message}");
            }
            gradient(&own)
        };
        assert_eq!(passes(true), passes(false), "a refused pass changes nothing");
    }

    let stack = stack(&SIZES, Precision::F32, false);
    let own = GradientSlot::new(&stack.workspace, 30);
    let slots = HeadSlots { norm: own.clone(), projection: own };
    let place = HeadPlace { norm: 0, projection: 6, vocabulary: 4 };
    let x = variable(&numbers(2, 36), &[2, 3, 6]);
    let loss = |x| {
        let (w, targets) = (tensor(&numbers(1, 30), &[30]), targets_of(&[1; 6], 4));
        ops::cross_entropy(x, &w, &place, &stack, &targets, 6, Backward::All(&slots)).unwrap()
    };
    let first = loss(&x);
    assert!(first.backward().is_ok());
    assert!(first.backward().unwrap_err().to_string().contains("one backward pass"));
    let scaled = (loss(&x) * 2.0).unwrap();
    assert!(scaled.backward().unwrap_err().to_string().contains("root"), "a scaled loss");
}

#[test]
fn tables_and_slices() {
    for head_dim in [0, 3] {
        assert!(is_shape("rope", RopeTable::new(4, head_dim, 1e4)));
    }
    let turned = zeros(&[2, 3]).t().unwrap();
    assert!(ops::with_slice(&turned, |_| ()).is_err());
    assert!(ops::update_in_place(&turned, |_| ()).is_err());
    let wide = Tensor::zeros(3, DType::F64, &Device::Cpu).unwrap();
    assert!(ops::with_slice(&wide, |_| ()).is_err());
    assert!(ops::update_in_place(&wide, |_| ()).is_err());
}
