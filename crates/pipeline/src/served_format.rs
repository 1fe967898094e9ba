//! The format of served weights.

use dipaco_model::WeightFormat;
use dipaco_server::WeightType;

/// The format of packed modules for a setting.
pub(crate) fn format(weights: WeightType) -> WeightFormat {
    match weights {
        WeightType::F32 => WeightFormat::F32,
        WeightType::Bf16 => WeightFormat::Bf16,
        WeightType::Q8_0 => WeightFormat::Q8_0,
        WeightType::Q4_0 => WeightFormat::Q4_0,
    }
}
