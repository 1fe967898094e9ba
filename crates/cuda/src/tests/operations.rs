use super::{Buffer, assert_close, random, run, shape, tolerance};
use crate::arena::segments;
use crate::batch::{Batch, BatchOffsets};
use crate::device::Address;
use crate::host::{Host, address};
use crate::{IGNORE, PathShape, Precision};

const BOTH: [Precision; 2] = [Precision::F32, Precision::Bf16];
/// Widths whose multiples are moved one number at a time and eight at a time.
const WIDTHS: [usize; 2] = [37, 1032];

/// A host per precision and width; what `f` gives must not depend on the order of the threads.
fn each(f: impl Fn(&mut Host, Precision, usize) -> Vec<f32>) {
    for precision in BOTH {
        for width in WIDTHS {
            let Some(mut host) = Host::new(&shape(width, 2, 8 * (2 - width % 2)), precision, 0) else {
                return;
            };
            let forwards = f(&mut host, precision, width);
            host.backwards = true;
            assert_eq!(forwards, f(&mut host, precision, width), "the order in which threads run shows");
        }
    }
}

#[test]
fn embedding_copies_rows_and_adds_up_their_gradients_in_order() {
    each(|host, _, width| {
        let shape = shape(width, 2, 8);
        let tokens = [5u32, 0, 5, 7, 36, 5, 0];
        let mut batch = Batch::new(&shape, 16);
        let mut packed = batch.pack(&tokens, &tokens).to_vec();
        let at = BatchOffsets::new(tokens.len());
        assert_eq!(&packed[at.order..at.starts], [1, 6, 0, 2, 5, 3, 4]);
        assert_eq!(&packed[at.starts..], [0, 2, 5, 6, 7, 7, 7, 7]);
        let packed = address(&mut packed);
        let weight = random(1, shape.vocab_size * width);
        let (mut weights, mut x) = (Buffer::f32(&weight), Buffer::f32(&vec![0.0; tokens.len() * width]));
        let arguments = [x.argument(), weights.argument(), packed.into()];
        run(host, "embedding_forward", (tokens.len(), 1), 128, &arguments);
        for (row, &token) in x.values().chunks(width).zip(&tokens) {
            assert_eq!(row, &weight[token as usize * width..][..width]);
        }
        let before = random(2, weight.len());
        let slope = random(3, tokens.len() * width);
        let (mut gradient, mut slopes) = (Buffer::f32(&before), Buffer::f32(&slope));
        let arguments = [
            gradient.argument(),
            slopes.argument(),
            packed.into(),
            packed.plus(4 * at.order).into(),
            packed.plus(4 * at.starts).into(),
        ];
        run(host, "embedding_backward", (tokens.len(), 1), 128, &arguments);
        let mut expected = before;
        for (row, &token) in slope.chunks(width).zip(&tokens) {
            expected[token as usize * width..][..width].iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        assert_eq!(gradient.values(), expected);
        gradient.values()
    });
}

#[test]
fn rms_norm_and_its_gradients() {
    each(|host, precision, width| {
        let (rows, epsilon, group) = (21usize, 1e-3f32, 4usize);
        let mut x = Buffer::f32(&random(1, rows * width));
        let mut weight = Buffer::f32(&random(2, width));
        let mut dy = Buffer::new(precision, &random(3, rows * width));
        let before = random(4, rows * width);
        let (x64, w64, dy64) = (x.f64(), weight.f64(), dy.f64());
        let (mut y64, mut dx64, mut dw64) = (vec![], vec![], vec![0f64; width]);
        for (row, slope) in x64.chunks(width).zip(dy64.chunks(width)) {
            let squares: f64 = row.iter().map(|x| x * x).sum();
            let scale = 1.0 / (squares / width as f64 + f64::from(epsilon)).sqrt();
            let pull: f64 = (0..width).map(|i| slope[i] * w64[i] * row[i]).sum::<f64>();
            for i in 0..width {
                y64.push(row[i] * scale * w64[i]);
                dx64.push(slope[i] * w64[i] * scale - row[i] * pull * scale.powi(3) / width as f64);
                dw64[i] += slope[i] * row[i] * scale;
            }
        }
        let mut y = Buffer::zeros(precision, rows * width);
        let arguments = [y.argument(), x.argument(), weight.argument(), epsilon.into(), (rows as i32).into()];
        run(host, "rms_norm_forward", (rows.div_ceil(8), 1), 256, &arguments);
        assert_close("y", &y.values(), &y64, tolerance(precision));

        let groups = rows.div_ceil(group);
        let mut bits = Vec::new();
        for residual in [false, true] {
            let mut dx = Buffer::f32(&before);
            let mut copy = Buffer::zeros(precision, rows * width);
            let mut partial = Buffer::f32(&vec![0.0; groups * width]);
            let mut dw = Buffer::f32(&vec![1.0; width]);
            let arguments = [
                dx.argument(),
                copy.argument(),
                partial.argument(),
                dy.argument(),
                x.argument(),
                weight.argument(),
                epsilon.into(),
                (rows as i32).into(),
                (group as i32).into(),
                i32::from(residual).into(),
            ];
            run(host, "rms_norm_backward", (groups, 1), 128, &arguments);
            let total =
                [dw.argument(), partial.argument(), (groups as i32).into(), i32::from(residual).into()];
            run(host, "rms_norm_weight_gradient", (width.div_ceil(32), 1), 256, &total);
            let sum = |own: &[f64], before: &[f32]| -> Vec<f64> {
                own.iter()
                    .zip(before)
                    .map(|(own, &before)| own + if residual { f64::from(before) } else { 0.0 })
                    .collect()
            };
            assert_close("dx", &dx.values(), &sum(&dx64, &before), 2e-6);
            assert_close("copy", &copy.values(), &dx.f64(), tolerance(precision));
            assert_close("dw", &dw.values(), &sum(&dw64, &vec![1.0; width]), 2e-6);
            bits.extend([dx.values(), dw.values()].concat());
        }
        bits
    });
}

#[test]
fn rope_turns_queries_and_keys_and_turns_them_back() {
    each(|host, precision, width| {
        let (heads, dim, time, rows) = (2, 8 * (2 - width % 2), 5usize, 10usize);
        let (half, attention) = (dim / 2, heads * dim);
        let before = Buffer::new(precision, &random(1, rows * 3 * attention));
        let angle = |i: usize| (i / half) as f64 * 0.3f64.powi((i % half) as i32);
        let table = |f: fn(f64) -> f64| {
            Buffer::f32(&(0..time * half).map(|i| f(angle(i)) as f32).collect::<Vec<_>>())
        };
        let (mut cosines, mut sines) = (table(f64::cos), table(f64::sin));
        let mut qkv = Buffer::new(precision, &before.values());
        let mut expected = before.f64();
        for (row, values) in expected.chunks_mut(3 * attention).enumerate() {
            for head in values[..2 * attention].chunks_mut(dim) {
                for j in 0..half {
                    let (sin, cos) = angle(row % time * half + j).sin_cos();
                    let (a, b) = (head[j], head[j + half]);
                    (head[j], head[j + half]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
        let mut turn = |qkv: &mut Buffer, sign: f32| {
            let arguments =
                [qkv.argument(), cosines.argument(), sines.argument(), (time as i32).into(), sign.into()];
            run(host, "rope", (rows, 1), 64, &arguments);
        };
        turn(&mut qkv, 1.0);
        assert_close("turned", &qkv.values(), &expected, tolerance(precision));
        turn(&mut qkv, -1.0);
        assert_close("turned back", &qkv.values(), &before.f64(), 2.0 * tolerance(precision));
        qkv.values()
    });
}

#[test]
fn swiglu_and_its_gradients_in_place() {
    each(|host, precision, width| {
        let (ffn, rows) = (2 * width, 3);
        let spread: Vec<f32> = random(1, rows * 2 * ffn).iter().map(|x| 6.0 * x).collect();
        let mut gate_up = Buffer::new(precision, &spread);
        let mut dy = Buffer::new(precision, &random(2, rows * ffn));
        let (values, slopes) = (gate_up.f64(), dy.f64());
        let (mut y64, mut gradient) = (vec![0f64; rows * ffn], vec![0f64; rows * 2 * ffn]);
        for i in 0..rows * ffn {
            let at = i / ffn * 2 * ffn + i % ffn;
            let (gate, up) = (values[at], values[at + ffn]);
            let sigmoid = 1.0 / (1.0 + (-gate).exp());
            y64[i] = gate * sigmoid * up;
            gradient[at] = slopes[i] * up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
            gradient[at + ffn] = slopes[i] * gate * sigmoid;
        }
        let mut y = Buffer::zeros(precision, rows * ffn);
        run(host, "swiglu_forward", (rows, 1), 256, &[y.argument(), gate_up.argument()]);
        assert_close("y", &y.values(), &y64, tolerance(precision));
        run(host, "swiglu_backward", (rows, 1), 256, &[gate_up.argument(), dy.argument()]);
        assert_close("gradient", &gate_up.values(), &gradient, tolerance(precision));
        assert_eq!(dy.values(), y.values());
        gate_up.values()
    });
}

#[test]
fn cross_entropy_of_a_chunk_with_targets_left_out() {
    each(|host, precision, width| {
        let (v, scale) = (3 * width, 0.25f32);
        let targets = [3u32, IGNORE, v as u32 - 1, 0];
        // Large logits: a sum without the maximum taken out would overflow.
        let numbers: Vec<f32> = random(1, targets.len() * v).iter().map(|x| 200.0 * x).collect();
        let logits = Buffer::f32(&numbers);
        let (mut losses64, mut gradient64) = (vec![], vec![]);
        for (row, &target) in logits.f64().chunks(v).zip(&targets) {
            let largest = row.iter().fold(f64::MIN, |most, &x| most.max(x));
            let log_sum = largest + row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
            let counted = target != IGNORE;
            losses64.push(if counted { log_sum - row[target as usize] } else { 0.0 });
            gradient64.extend(row.iter().enumerate().map(|(i, x)| {
                let hot = f64::from(u8::from(i == target as usize));
                if counted { ((x - log_sum).exp() - hot) * f64::from(scale) } else { 0.0 }
            }));
        }
        let mut bits = Vec::new();
        for wanted in [false, true] {
            let mut logits = Buffer::f32(&numbers);
            let mut gradient = Buffer::zeros(precision, numbers.len());
            let mut losses = Buffer::f32(&[9.0; 4]);
            let mut targets = targets;
            let in_place = precision == Precision::F32;
            let arguments = [
                if in_place { logits.argument() } else { gradient.argument() },
                logits.argument(),
                losses.argument(),
                address(&mut targets).into(),
                scale.into(),
                i32::from(wanted).into(),
            ];
            run(host, "cross_entropy", (targets.len(), 1), 512, &arguments);
            assert_close("losses", &losses.values(), &losses64, 2e-6);
            let found = if in_place { logits.values() } else { gradient.values() };
            if wanted {
                assert_close("gradient", &found, &gradient64, tolerance(precision).max(2e-5));
            } else {
                assert_eq!(found, if in_place { numbers.clone() } else { vec![0.0; numbers.len()] });
            }
            let mut report = [7f64; 3];
            for accumulate in [0, 1] {
                let arguments = [
                    address(&mut report).into(),
                    losses.argument(),
                    (targets.len() as i32).into(),
                    accumulate.into(),
                ];
                run(host, "sum_losses", (1, 1), 256, &arguments);
            }
            let expected = 2.0 * losses.f64().iter().sum::<f64>();
            assert!((report[0] - expected).abs() < 1e-9 * expected);
            bits.extend(found);
        }
        bits
    });
}

#[test]
fn adamw_clips_and_decays_as_the_optimizer_of_the_cpu_does() {
    use dipaco_optim::{AdamWConfig, adamw_step, clip_scale, squared_norm};

    each(|host, precision, width| {
        // Segments of all kinds, some longer than one block takes.
        let shape = PathShape { vocab_size: 17_000 / width, ffn_size: 8, ..shape(width.min(104), 2, 8) };
        let count = shape.parameters();
        let config = AdamWConfig::default();
        let start = [1, 2, 3, 4].map(|seed| random(seed, count));
        let [p, m, g, v] = start;
        let v: Vec<f32> = v.iter().map(|v| v * v).collect();
        let (mut expected_p, mut expected_m, mut expected_v) = (p.clone(), m.clone(), v.clone());
        let squared = squared_norm(&g);
        let (step, rate) = (7u64, 3e-3);
        for (first, length, decays) in shape.runs() {
            let at = first..first + length;
            adamw_step(
                &mut expected_p[at.clone()],
                &g[at.clone()],
                &mut expected_m[at.clone()],
                &mut expected_v[at],
                step,
                rate,
                clip_scale(squared, config.clip_norm),
                decays,
                &config,
            );
        }
        let [mut p, mut m, mut v, mut g] = [p, m, v, g].map(|values| Buffer::f32(&values));
        let mut copy = Buffer::zeros(Precision::Bf16, count);
        let mut segments = segments(&shape);
        let mut report = [1f64, 0.0, 0.0];
        let chunks = count.div_ceil(crate::kernels::SQUARES_CHUNK);
        let mut partial = vec![0f64; chunks];
        let arguments = [address(&mut partial).into(), g.argument(), (count as u64).into()];
        run(host, "squared_norm", (chunks, 1), 256, &arguments);
        let arguments = [
            address(&mut report).into(),
            address(&mut partial).into(),
            (chunks as i32).into(),
            config.clip_norm.into(),
        ];
        run(host, "clip", (1, 1), 256, &arguments);
        assert!((report[1] - squared).abs() < 1e-6 * squared);
        assert!((report[2] - clip_scale(squared, config.clip_norm)).abs() < 1e-6);
        let with_copy = precision == Precision::Bf16;
        let steps = step as f64;
        let mut update = |report: &mut [f64; 3]| {
            let arguments = [
                p.argument(),
                m.argument(),
                v.argument(),
                if with_copy { copy.address() } else { Address::NULL }.into(),
                g.argument(),
                address(&mut segments).into(),
                address(report).into(),
                ((1.0 - rate * config.weight_decay) as f32).into(),
                ((rate / (1.0 - config.beta1.powf(steps))) as f32).into(),
                ((1.0 / (1.0 - config.beta2.powf(steps)).sqrt()) as f32).into(),
                (config.beta1 as f32).into(),
                ((1.0 - config.beta1) as f32).into(),
                (config.beta2 as f32).into(),
                ((1.0 - config.beta2) as f32).into(),
                (config.epsilon as f32).into(),
            ];
            run(host, "adamw", (segments.len(), 1), 512, &arguments);
            p.values()
        };
        let untouched = update(&mut [f64::NAN, 1.0, 1.0]);
        assert_eq!(untouched, random(1, count), "a loss that is not finite must change nothing");
        let f64s = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        assert_close("p", &update(&mut report), &f64s(&expected_p), 1e-6);
        assert_close("m", &m.values(), &f64s(&expected_m), 1e-6);
        assert_close("v", &v.values(), &f64s(&expected_v), 1e-6);
        if with_copy {
            assert_eq!(copy.values(), Buffer::new(Precision::Bf16, &p.values()).values());
        }
        p.values()
    });
}
