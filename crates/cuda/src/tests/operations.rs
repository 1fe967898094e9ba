use dipaco_model::{Dtype, IGNORE, ModelConfig, TokenRows, parameters, path_specs};
use dipaco_optim::{AdamWConfig, AdamWMoments, AdamWStep, adamw_step, clip_scale, squared_norm};

use super::{Buffer, assert_close, config, random, run, tolerance};
use crate::Trained;
use crate::arena::segments;
use crate::batch::{BatchOffsets, PackedBatch};
use crate::device::{Address, Grid};
use crate::host::{Host, address};
use crate::kernels::SQUARES_CHUNK;
use crate::layout::{DecayRun, decay_runs};
use crate::step_numbers::StepNumbers;

/// Widths for which the kernels move one number at a time and eight at a time.
const WIDTHS: [usize; 2] = [37, 1032];

/// Runs `f` with a host of each dtype and width. The order of the threads must not change the result.
fn each(f: impl Fn(&mut Host, Dtype, usize) -> Vec<f32>) {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for width in WIDTHS {
            let mut host = Host::new(&config(dtype, width, 2, 8 * (2 - width % 2)), 0);
            let forwards = f(&mut host, dtype, width);
            host.backwards = true;
            assert_eq!(forwards, f(&mut host, dtype, width), "the order in which threads run shows");
        }
    }
}

#[test]
fn embedding_copies_rows_and_adds_up_their_gradients_in_order() {
    each(|host, _, width| {
        let vocabulary = 3 * width;
        let tokens = [5u32, 0, 5, 7, 36, 5, 0];
        let mut batch = PackedBatch::new(vocabulary, 16);
        let rows = TokenRows::new(tokens, 1, vocabulary).unwrap();
        let mut packed = batch.pack(&rows, &tokens).to_vec();
        let at = BatchOffsets::new(tokens.len());
        assert_eq!(&packed[at.order..at.starts], [1, 6, 0, 2, 5, 3, 4]);
        assert_eq!(&packed[at.starts..], [0, 2, 5, 6, 7, 7, 7, 7]);
        let packed = address(&mut packed);
        let weight = random(1, vocabulary * width);
        let (mut weights, mut x) = (Buffer::f32(&weight), Buffer::f32(&vec![0.0; tokens.len() * width]));
        let arguments = [x.argument(), weights.argument(), packed.into()];
        run(host, "embedding_forward", Grid::line(tokens.len()), 128, &arguments);
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
        run(host, "embedding_backward", Grid::line(tokens.len()), 128, &arguments);
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
    each(|host, dtype, width| {
        let (rows, epsilon, group) = (21usize, 1e-3f32, 4usize);
        let mut x = Buffer::f32(&random(1, rows * width));
        let mut weight = Buffer::f32(&random(2, width));
        let mut dy = Buffer::new(dtype, &random(3, rows * width));
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
        let mut y = Buffer::zeros(dtype, rows * width);
        let arguments = [y.argument(), x.argument(), weight.argument(), epsilon.into(), (rows as i32).into()];
        run(host, "rms_norm_forward", Grid::line(rows.div_ceil(8)), 256, &arguments);
        assert_close("y", &y.values(), &y64, tolerance(dtype));

        let groups = rows.div_ceil(group);
        let mut bits = Vec::new();
        for residual in [false, true] {
            let mut dx = Buffer::f32(&before);
            let mut copy = Buffer::zeros(dtype, rows * width);
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
            run(host, "rms_norm_backward", Grid::line(groups), 128, &arguments);
            let total =
                [dw.argument(), partial.argument(), (groups as i32).into(), i32::from(residual).into()];
            run(host, "rms_norm_weight_gradient", Grid::line(width.div_ceil(32)), 256, &total);
            let sum = |own: &[f64], before: &[f32]| -> Vec<f64> {
                own.iter()
                    .zip(before)
                    .map(|(own, &before)| own + if residual { f64::from(before) } else { 0.0 })
                    .collect()
            };
            assert_close("dx", &dx.values(), &sum(&dx64, &before), 2e-6);
            assert_close("copy", &copy.values(), &dx.f64(), tolerance(dtype));
            assert_close("dw", &dw.values(), &sum(&dw64, &vec![1.0; width]), 2e-6);
            bits.extend([dx.values(), dw.values()].concat());
        }
        bits
    });
}

#[test]
fn rope_turns_queries_and_keys_and_turns_them_back() {
    each(|host, dtype, width| {
        let (heads, dim, time, rows) = (2, 8 * (2 - width % 2), 5usize, 10usize);
        let (half, attention) = (dim / 2, heads * dim);
        let before = Buffer::new(dtype, &random(1, rows * 3 * attention));
        let angle = |i: usize| (i / half) as f64 * 0.3f64.powi((i % half) as i32);
        let table = |f: fn(f64) -> f64| {
            Buffer::f32(&(0..time * half).map(|i| f(angle(i)) as f32).collect::<Vec<_>>())
        };
        let (mut cosines, mut sines) = (table(f64::cos), table(f64::sin));
        let mut qkv = Buffer::new(dtype, &before.values());
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
            run(host, "rope", Grid::line(rows), 64, &arguments);
        };
        turn(&mut qkv, 1.0);
        assert_close("turned", &qkv.values(), &expected, tolerance(dtype));
        turn(&mut qkv, -1.0);
        assert_close("turned back", &qkv.values(), &before.f64(), 2.0 * tolerance(dtype));
        qkv.values()
    });
}

#[test]
fn swiglu_and_its_gradients_in_place() {
    each(|host, dtype, width| {
        let (ffn, rows) = (2 * width, 3);
        let spread: Vec<f32> = random(1, rows * 2 * ffn).iter().map(|x| 6.0 * x).collect();
        let mut gate_up = Buffer::new(dtype, &spread);
        let mut dy = Buffer::new(dtype, &random(2, rows * ffn));
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
        let mut y = Buffer::zeros(dtype, rows * ffn);
        run(host, "swiglu_forward", Grid::line(rows), 256, &[y.argument(), gate_up.argument()]);
        assert_close("y", &y.values(), &y64, tolerance(dtype));
        run(host, "swiglu_backward", Grid::line(rows), 256, &[gate_up.argument(), dy.argument()]);
        assert_close("gradient", &gate_up.values(), &gradient, tolerance(dtype));
        assert_eq!(dy.values(), y.values());
        gate_up.values()
    });
}

#[test]
fn cross_entropy_of_a_chunk_with_targets_left_out() {
    each(|host, dtype, width| {
        // Four counted targets: a scale of 1 / 4.
        let (v, scale, counted) = (3 * width, 0.25f32, 4);
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
            let mut gradient = Buffer::zeros(dtype, numbers.len());
            let mut losses = Buffer::f32(&[9.0; 4]);
            let mut targets = targets;
            let in_place = dtype == Dtype::F32;
            let mut of_step = [StepNumbers::new(&AdamWConfig::default(), 1, 1e-3, counted)];
            let arguments = [
                if in_place { logits.argument() } else { gradient.argument() },
                logits.argument(),
                losses.argument(),
                address(&mut targets).into(),
                if wanted { address(&mut of_step) } else { Address::NULL }.into(),
            ];
            run(host, "cross_entropy", Grid::line(targets.len()), 512, &arguments);
            assert_close("losses", &losses.values(), &losses64, 2e-6);
            let found = if in_place { logits.values() } else { gradient.values() };
            if wanted {
                assert_close("gradient", &found, &gradient64, tolerance(dtype).max(2e-5));
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
                run(host, "sum_losses", Grid::line(1), 256, &arguments);
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
    each(|host, dtype, width| {
        // Segments of all kinds, some longer than one block of the kernel.
        let base = config(dtype, width.min(104), 2, 8);
        let config = ModelConfig { vocab_size: 17_000 / width, ffn_size: 8, ..base };
        let count = parameters(&path_specs(&config));
        let adamw = AdamWConfig::default();
        let (number, rate) = (7u64, 3e-3);
        let [p, m, g, v] = [1, 2, 3, 4].map(|seed| random(seed, count));
        let v: Vec<f32> = v.iter().map(|v| v * v).collect();
        let squared = squared_norm(&g);
        let gradient_scale = clip_scale(squared, adamw.clip_norm);
        let (mut expected_p, mut expected_m, mut expected_v) = (p.clone(), m.clone(), v.clone());
        for DecayRun { first, length, decays } in decay_runs(&config) {
            let at = first..first + length;
            let moments =
                AdamWMoments { first: &mut expected_m[at.clone()], second: &mut expected_v[at.clone()] };
            let step = AdamWStep { number, learning_rate: rate, gradient_scale, decay: decays };
            adamw_step(&mut expected_p[at.clone()], &g[at], moments, &step, &adamw);
        }
        let [mut p, mut m, mut v, mut g] = [p, m, v, g].map(|values| Buffer::f32(&values));
        let mut copy = Buffer::zeros(Dtype::Bf16, count);
        let mut segments = segments(&config, &Trained::all(&config));
        let mut report = clip(host, &mut g, &adamw);
        assert!((report[1] - squared).abs() < 1e-6 * squared);
        assert!((report[2] - gradient_scale).abs() < 1e-6);
        let with_copy = dtype == Dtype::Bf16;
        let mut numbers = [StepNumbers::new(&adamw, number, rate, 1)];
        let mut update = |report: &mut [f64; 3]| {
            let arguments = [
                p.argument(),
                m.argument(),
                v.argument(),
                if with_copy { copy.address() } else { Address::NULL }.into(),
                g.argument(),
                address(&mut segments).into(),
                address(report).into(),
                address(&mut numbers).into(),
            ];
            run(host, "adamw", Grid::line(segments.len()), 512, &arguments);
            p.values()
        };
        let untouched = update(&mut [f64::NAN, 1.0, 1.0]);
        assert_eq!(untouched, random(1, count), "a loss that is not finite must change nothing");
        let f64s = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        assert_close("p", &update(&mut report), &f64s(&expected_p), 1e-6);
        assert_close("m", &m.values(), &f64s(&expected_m), 1e-6);
        assert_close("v", &v.values(), &f64s(&expected_v), 1e-6);
        if with_copy {
            assert_eq!(copy.values(), Buffer::new(Dtype::Bf16, &p.values()).values());
        }
        p.values()
    });
}

/// Computes the report of a gradient: a loss of 1, the squared norm, and the factor that clips.
fn clip(host: &mut Host, gradient: &mut Buffer, adamw: &AdamWConfig) -> [f64; 3] {
    let mut report = [1f64, 0.0, 0.0];
    let chunks = gradient.count.div_ceil(SQUARES_CHUNK);
    let mut partial = vec![0f64; chunks];
    let mut numbers = [StepNumbers::new(adamw, 1, 1e-3, 1)];
    let arguments = [address(&mut partial).into(), gradient.argument(), (gradient.count as u64).into()];
    run(host, "squared_norm", Grid::line(chunks), 256, &arguments);
    let arguments = [
        address(&mut report).into(),
        address(&mut partial).into(),
        (chunks as i32).into(),
        address(&mut numbers).into(),
    ];
    run(host, "clip", Grid::line(1), 256, &arguments);
    report
}
