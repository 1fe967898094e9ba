//! The check of an outer gradient, whose bytes come piece by piece.

use dipaco_codec::{CodecError, Decoder};
use dipaco_optim::squared_norm;
use tokio::sync::OwnedSemaphorePermit;

/// A result that has passed its check.
#[derive(Default)]
pub(super) struct CheckedResult {
    /// Euclidean norm of an outer gradient; 0 for a state.
    pub(super) norm: f64,
    /// The decoded values of an outer gradient with their room; `None` if there was no room for them.
    pub(super) values: Option<(Vec<f32>, OwnedSemaphorePermit)>,
}

/// Decodes an outer gradient piece by piece. Every value must be finite.
pub(super) struct GradientCheck {
    decoder: Decoder,
    decoded: Result<(), CodecError>,
    /// Square of the norm of the values so far.
    sum: f64,
    /// Number of all values.
    length: usize,
    /// The values so far with their room; `None` if there is no room for them.
    kept: Option<(Vec<f32>, OwnedSemaphorePermit)>,
}

impl GradientCheck {
    /// Begins an outer gradient of so many bytes and values. The values are kept if there is room for them.
    pub(super) fn new(bytes: u64, length: usize, room: Option<OwnedSemaphorePermit>) -> Self {
        let (decoder, kept) = (Decoder::new(bytes, length), room.map(|room| (Vec::new(), room)));
        Self { decoder, decoded: Ok(()), sum: 0.0, length, kept }
    }

    /// Reads the next piece. Returns false if the gradient is wrong: then nothing more is read.
    pub(super) fn read(&mut self, piece: &[u8]) -> bool {
        let Self { decoder, decoded, sum, length, kept } = self;
        if decoded.is_ok() {
            *decoded = decoder.read(piece, |values| {
                *sum += squared_norm(values);
                if let Some((kept, _)) = &mut *kept {
                    // Not before the first values: by now the header agrees with the announced length.
                    kept.reserve_exact(length.saturating_sub(kept.len()));
                    kept.extend_from_slice(values);
                }
            });
        }
        if decoded.is_err() {
            // The upload goes on, and another one may need the room.
            *kept = None;
        }
        decoded.is_ok()
    }

    /// Ends the pieces.
    ///
    /// # Errors
    /// The bytes are not the expected number of finite values.
    pub(super) fn finish(self) -> Result<CheckedResult, CodecError> {
        let Self { decoder, decoded, sum, kept, .. } = self;
        decoded.and_then(|()| decoder.finish())?;
        Ok(CheckedResult { norm: sum.sqrt(), values: kept })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dipaco_codec::{Compression, decode, encode};
    use tokio::sync::Semaphore;

    use super::*;

    /// More than the decoder gives at a time.
    const LENGTH: usize = (1 << 18) + 7;

    fn room(all: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        all.clone().try_acquire_owned().ok()
    }

    fn checked(bytes: &[u8], piece: usize, room: Option<OwnedSemaphorePermit>) -> Option<CheckedResult> {
        let mut check = GradientCheck::new(bytes.len() as u64, LENGTH, room);
        let read = bytes.chunks(piece).all(|piece| check.read(piece));
        let finished = check.finish();
        assert!(read || finished.is_err());
        finished.ok()
    }

    #[test]
    fn pieces_of_any_length_give_the_values_and_the_same_norm() {
        let all = Arc::new(Semaphore::new(1));
        let values: Vec<f32> = (0..LENGTH).map(|at| (at % 37) as f32 - 18.0).collect();
        for compression in [Compression::F32, Compression::E3m0] {
            let bytes = encode(&values, compression).unwrap();
            let whole = checked(&bytes, bytes.len(), None).unwrap();
            assert!(whole.values.is_none());
            for piece in [1000, 4099, bytes.len()] {
                let CheckedResult { norm, values } = checked(&bytes, piece, room(&all)).unwrap();
                assert_eq!(norm.to_bits(), whole.norm.to_bits());
                assert!(values.unwrap().0 == decode(&bytes, LENGTH).unwrap());
            }
        }
    }

    #[test]
    fn a_wrong_gradient_has_no_outcome_but_the_first_reason() {
        let mut bytes = encode(&vec![1.0; LENGTH], Compression::F32).unwrap();
        assert!(checked(&bytes[..bytes.len() - 4], 1000, None).is_none());
        let mut check = GradientCheck::new(bytes.len() as u64, LENGTH, None);
        assert!(check.read(&bytes[..1000]));
        assert!(matches!(check.finish().err(), Some(CodecError::Length { .. })), "the end is missing");
        bytes[100..104].copy_from_slice(&f32::INFINITY.to_le_bytes());
        let mut check = GradientCheck::new(bytes.len() as u64, LENGTH, None);
        assert!(!check.read(&bytes) && !check.read(&bytes));
        assert_eq!(check.finish().err(), Some(CodecError::NotFinite { position: 19 }));
    }
}
