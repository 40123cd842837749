//! Macros that make the thin functions with `#[target_feature]` for each level.
//!
//! A wrapper is a safe function: it checks lengths, then enters the generic body compiled with the
//! level's features. That is sound because a level's table leaves its module only through
//! [`levels`](crate::levels), which asks the processor first.

/// Makes a safe function around a body that is compiled with `$features`.
macro_rules! target_feature_fn {
    ($features:literal, fn $name:ident $(<$g:ident: $bound:path>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?,
     $check:block, $body:expr) => {
        pub(super) fn $name $(<$g: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline]
            #[target_feature(enable = $features)]
            fn inner $(<$g: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the lengths were checked by the wrapper (or are by the body); this
                // function has the features.
                unsafe { $body }
            }
            $check
            // SAFETY: the level was handed out after its features were found; see the module.
            unsafe { inner $(::<$g>)? ($($arg),*) }
        }
    };
}

/// `VECTOR`, the [`VectorKernels`](crate::VectorKernels) of the vector type `$S`.
macro_rules! vector_wrappers {
    ($S:ty, $features:literal) => {
        mod vector {
            use super::*;
            use $crate::generic::{attention, attention::Expand, recurrent, rows, target_feature_wrappers::target_feature_fn, vector};
            use $crate::{AttendTile, KV_TILE, KvLayout, KvRows, KvType, RunningSoftmax, ScoreTile, Scratch, VectorKernels};
            use $crate::{DeltaStep, PoolStep, RecurrentKernels, ScanStep, Tap, Wkv7Step, WkvStep};

            pub(super) const VECTOR: VectorKernels = VectorKernels {
                quantize_q8,
                rms_norm,
                layer_norm,
                add,
                swiglu,
                geglu,
                gelu,
                gelu_erf,
                exp_sum,
                max,
                store_kv,
                attend,
                score,
                recurrent: RecurrentKernels { conv, scan, delta, wkv, wkv7, pool },
            };

            target_feature_fn!($features, fn quantize_q8(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i16]), {
                assert!(x.len().is_multiple_of(32) && codes.len() == x.len());
                assert!(scales.len() == x.len() / 32 && sums.len() == x.len() / 16);
            }, vector::quantize_q8::<$S>(x, codes, scales, sums));
            target_feature_fn!($features, fn rms_norm(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]), {
                assert!(y.len() == x.len() && (w.is_empty() || w.len() == x.len()));
            }, vector::rms_norm::<$S>(x, w, eps, y));
            target_feature_fn!($features, fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, y: &mut [f32]), {
                assert!(y.len() == x.len() && (w.is_empty() || w.len() == x.len()));
                assert!(b.is_empty() || b.len() == x.len());
            }, vector::layer_norm::<$S>(x, w, b, eps, y));
            target_feature_fn!($features, fn add(y: &mut [f32], x: &[f32]), {
                assert_eq!(y.len(), x.len());
            }, vector::add::<$S>(y, x));
            target_feature_fn!($features, fn swiglu(gate: &mut [f32], up: &[f32]), {
                assert_eq!(gate.len(), up.len());
            }, vector::swiglu::<$S>(gate, up));
            target_feature_fn!($features, fn geglu(gate: &mut [f32], up: &[f32]), {
                assert_eq!(gate.len(), up.len());
            }, vector::geglu::<$S>(gate, up));
            target_feature_fn!($features, fn gelu(x: &mut [f32]), {}, vector::gelu::<$S>(x));
            target_feature_fn!($features, fn gelu_erf(x: &mut [f32]), {}, vector::gelu_erf::<$S>(x));
            target_feature_fn!($features, fn exp_sum(x: &mut [f32], max: f32) -> f32, {}, vector::exp_sum::<$S>(x, max));
            target_feature_fn!($features, fn max(x: &[f32]) -> f32, {}, vector::max::<$S>(x));
            target_feature_fn!($features, fn store_kv(ty: KvType, x: &[f32], row: &mut [u8]), {},
                attention::store_kv::<$S>(ty, x, row));
            target_feature_fn!($features, fn expand<R: rows::RowFormat>(rows: KvRows<'_>, to: &mut [f32]), {
                let columns = rows.layout == KvLayout::Columns;
                assert!(if columns { KV_TILE } else { rows.rows } * rows.dim <= to.len());
            }, attention::expand::<$S, R>(rows, to));
            target_feature_fn!($features, fn attend_by(
                tile: &AttendTile<'_>, state: &mut RunningSoftmax<'_>, scratch: &mut Scratch, expanders: [Expand; 2]
            ), {}, attention::attend::<$S>(tile, state, scratch, expanders));

            target_feature_fn!($features, fn score_by(
                tile: &ScoreTile<'_>, sums: &mut [f32], scratch: &mut Scratch, expand: Expand
            ), {}, attention::score_sums::<$S>(tile, sums, scratch, expand));

            target_feature_fn!($features, fn conv(taps: &[Tap<'_>], bias: &[f32], silu: bool, y: &mut [f32]), {
                assert!(taps.iter().all(|tap| tap.x.len() == y.len() && tap.w.len() == y.len()));
                assert!(bias.is_empty() || bias.len() == y.len());
            }, recurrent::conv::<$S>(taps, bias, silu, y));
            target_feature_fn!($features, fn scan(step: ScanStep<'_>), { step.check(); }, recurrent::scan::<$S>(step));
            target_feature_fn!($features, fn delta(step: DeltaStep<'_>), { step.check(); }, recurrent::delta::<$S>(step));
            target_feature_fn!($features, fn wkv(step: WkvStep<'_>), { step.check(); }, recurrent::wkv::<$S>(step));
            target_feature_fn!($features, fn wkv7(step: Wkv7Step<'_>), { step.check(); }, recurrent::wkv7::<$S>(step));

            target_feature_fn!($features, fn pool(step: PoolStep<'_>), { step.check(); }, recurrent::pool::<$S>(step));

            fn expander(ty: KvType) -> Expand {
                match ty {
                    KvType::F32 => expand::<rows::F32>,
                    KvType::F16 => expand::<rows::F16>,
                    KvType::Bf16 => expand::<rows::Bf16>,
                    KvType::Q8_0 => expand::<rows::Q8Blocks>,
                    KvType::Q4_0 => expand::<rows::Q4Blocks>,
                }
            }

            fn attend(tile: &AttendTile<'_>, state: &mut RunningSoftmax<'_>, scratch: &mut Scratch) {
                attend_by(tile, state, scratch, [expander(tile.keys.ty), expander(tile.values.ty)]);
            }

            fn score(tile: &ScoreTile<'_>, sums: &mut [f32], scratch: &mut Scratch) {
                score_by(tile, sums, scratch, expander(tile.keys.ty));
            }
        }
    };
}

/// `float::kernel`: the products of weights stored as floats, f32 activations.
macro_rules! float_wrappers {
    ($S:ty, $features:literal) => {
        mod float {
            use puna_quant::TensorType;

            use super::*;
            use $crate::generic::{Simd, linear, panel, rows, sweep::OutBlock, target_feature_wrappers::target_feature_fn};
            use $crate::{ActKind, Acts, LinearKernel, OutMut, STREAM_ROWS, Scratch, WeightRows};

            pub(super) fn kernel(ty: TensorType) -> Option<LinearKernel> {
                match ty {
                    TensorType::F32 => Some(kernel_of::<rows::F32>()),
                    TensorType::F16 => Some(kernel_of::<rows::F16>()),
                    TensorType::BF16 => Some(kernel_of::<rows::Bf16>()),
                    _ => None,
                }
            }

            fn kernel_of<R: rows::RowFormat>() -> LinearKernel {
                LinearKernel {
                    acts: ActKind::F32,
                    stream: stream::<R>,
                    stream_rows: STREAM_ROWS,
                    panel: many::<R>,
                    panel_rows: <$S>::F32_PANEL_VECTORS * <$S>::LANES,
                    bf16_parts: 0,
                    tiles: None,
                }
            }

            target_feature_fn!($features, fn stream<R: rows::RowFormat>(
                w: WeightRows<'_>, x: Acts<'_>, out: OutMut<'_>, _scratch: &mut Scratch
            ), {
                assert_eq!(w.ty, R::TYPE);
            }, linear::stream::<$S, R>(w, x, out));
            target_feature_fn!($features, fn sweep(
                panel: &[f32], packed: &[f32], len: usize, tokens: usize, out: &mut OutMut<'_>, block: OutBlock
            ), {}, panel::sweep::<panel::Floats<$S, rows::F32>>(panel, packed, len, tokens, out, block));
            target_feature_fn!($features, fn many<R: rows::RowFormat>(
                w: WeightRows<'_>, x: Acts<'_>, out: OutMut<'_>, scratch: &mut Scratch
            ), {
                assert_eq!(w.ty, R::TYPE);
            }, linear::many::<panel::Floats<$S, R>>(w, x, out, scratch));
        }
    };
}

/// `packed::kernel`: the products of packed weights, 8-bit activations.
macro_rules! packed_wrappers {
    ($S:ty, $features:literal) => {
        mod packed {
            use puna_quant::TensorType;

            use super::*;
            use $crate::generic::formats::{blocks, codebook, kquants, ternary};
            use $crate::generic::quant::{self, Codes, Packing, Unpacked};
            use $crate::generic::qstream::{self, Memory};
            use $crate::generic::{Format, QuantSimd, Simd, qpanel, target_feature_wrappers::target_feature_fn};
            use $crate::{ActKind, Acts, LinearFn, LinearKernel, OutMut, STREAM_ROWS, Scratch, WeightRows};

            pub(crate) fn kernel(ty: TensorType) -> Option<LinearKernel> {
                Some(match ty {
                    TensorType::Q4_0 => kernel_of::<blocks::Q4_0>(),
                    TensorType::Q4_1 => kernel_of::<blocks::Q4_1>(),
                    TensorType::Q5_0 => kernel_of::<blocks::Q5_0>(),
                    TensorType::Q5_1 => kernel_of::<blocks::Q5_1>(),
                    TensorType::Q8_0 => kernel_of::<blocks::Q8_0>(),
                    TensorType::IQ4_NL => kernel_of::<blocks::IQ4_NL>(),
                    TensorType::MXFP4 => kernel_of::<blocks::MXFP4>(),
                    TensorType::NVFP4 => kernel_of::<blocks::NVFP4>(),
                    TensorType::Q1_0 => rare::<blocks::Q1_0>(),
                    TensorType::Q2_0 => rare::<blocks::Q2_0>(),
                    TensorType::Q2_K => kernel_of::<kquants::Q2_K>(),
                    TensorType::Q3_K => kernel_of::<kquants::Q3_K>(),
                    TensorType::Q4_K => kernel_of::<kquants::Q4_K>(),
                    TensorType::Q5_K => kernel_of::<kquants::Q5_K>(),
                    TensorType::Q6_K => kernel_of::<kquants::Q6_K>(),
                    TensorType::IQ4_XS => kernel_of::<kquants::IQ4_XS>(),
                    TensorType::TQ1_0 => kernel_of::<ternary::TQ1_0>(),
                    TensorType::TQ2_0 => kernel_of::<ternary::TQ2_0>(),
                    TensorType::IQ1_S => rare::<codebook::IQ1_S>(),
                    TensorType::IQ1_M => rare::<codebook::IQ1_M>(),
                    TensorType::IQ2_XXS => rare::<codebook::IQ2_XXS>(),
                    TensorType::IQ2_XS => rare::<codebook::IQ2_XS>(),
                    TensorType::IQ2_S => rare::<codebook::IQ2_S>(),
                    TensorType::IQ3_XXS => rare::<codebook::IQ3_XXS>(),
                    TensorType::IQ3_S => rare::<codebook::IQ3_S>(),
                    _ => return None,
                })
            }

            /// With a kernel of its own for few activation rows.
            fn kernel_of<F: Format>() -> LinearKernel {
                // Eight rows at once unpack a block for less than the panel does for so few.
                let stream_rows = if <$S as QuantSimd>::STREAM_TILE >= 8 { 2 * STREAM_ROWS } else { STREAM_ROWS };
                LinearKernel { stream_rows, ..by_panel::<F>(stream::<F>) }
            }

            fn rare<F: Format>() -> LinearKernel {
                const { assert!(matches!(F::CODES, Codes::Signed) || F::CODES.code_limit() <= Memory::<false, 32>::CODES.code_limit()) };
                by_panel::<F>(stream_rare::<F>)
            }

            fn by_panel<F: Format>(stream: LinearFn) -> LinearKernel {
                LinearKernel {
                    acts: ActKind::Q8,
                    stream,
                    stream_rows: STREAM_ROWS,
                    panel: panel::<F>,
                    panel_rows: <$S as QuantSimd>::PANEL_VECTORS * <$S>::LANES,
                    bf16_parts: 0,
                    tiles: None,
                }
            }

            fn packing<F: Format>() -> Packing {
                #[target_feature(enable = $features)]
                unsafe fn unpack<F: Format>(p: *const u8, stride: usize, to: &mut [Unpacked]) {
                    // SAFETY: the caller's chunks are whole; this function has the features.
                    unsafe { quant::unpack_each::<$S, F>(p, stride, to) }
                }
                Packing { block: F::BLOCK, bytes: F::BYTES, sub: F::SUB, codes: F::CODES, unpack: unpack::<F> }
            }

            fn stream_rare<F: Format>(w: WeightRows<'_>, x: Acts<'_>, out: OutMut<'_>, scratch: &mut Scratch) {
                assert_eq!(w.ty, F::TYPE);
                match (F::CODES == Codes::Signed, F::SUB) {
                    (true, 16) => stream_memory::<Memory<true, 16>>(w, x, out, scratch, &packing::<F>()),
                    (true, _) => stream_memory::<Memory<true, 32>>(w, x, out, scratch, &packing::<F>()),
                    (false, 16) => stream_memory::<Memory<false, 16>>(w, x, out, scratch, &packing::<F>()),
                    (false, _) => stream_memory::<Memory<false, 32>>(w, x, out, scratch, &packing::<F>()),
                }
            }

            fn panel<F: Format>(w: WeightRows<'_>, x: Acts<'_>, out: OutMut<'_>, scratch: &mut Scratch) {
                assert_eq!(w.ty, F::TYPE);
                panel_any(w, x, out, scratch, &packing::<F>());
            }

            target_feature_fn!($features, fn stream<F: Format>(
                w: WeightRows<'_>, x: Acts<'_>, out: OutMut<'_>, scratch: &mut Scratch
            ), {
                assert_eq!(w.ty, F::TYPE);
            }, qstream::dot_few_rows::<$S, F>(w, x, out, scratch, None));
            target_feature_fn!($features, fn stream_memory<M: Format>(
                w: WeightRows<'_>, x: Acts<'_>, out: OutMut<'_>, scratch: &mut Scratch, packing: &Packing
            ), {}, qstream::dot_few_rows::<$S, M>(w, x, out, scratch, Some(packing)));
            target_feature_fn!($features, fn panel_any(
                w: WeightRows<'_>, x: Acts<'_>, out: OutMut<'_>, scratch: &mut Scratch, packing: &Packing
            ), {}, qpanel::matmul_panel::<$S>(w, x, out, scratch, packing));
        }
    };
}

/// `$name`: the sweep of `$S` over tokens, compiled once for each kind of scales, where the class
/// of codes is of no matter and `$code_limit` stands for all.
macro_rules! sweep_wrapper {
    ($vis:vis $name:ident, $S:ty, $features:literal, $code_limit:literal) => {
        #[target_feature(enable = $features)]
        $vis fn $name<const SUB: usize, const MIN: bool>(
            panel: $crate::generic::sweep::Panel<'_>,
            packed: &[u8],
            tokens: usize,
            out: &mut $crate::OutMut<'_>,
            block: $crate::generic::sweep::OutBlock,
        ) {
            // SAFETY: this function has the features; the panel and the tokens were packed for each
            // other.
            unsafe {
                $crate::generic::qpanel::sweep_body::<$S, SUB, MIN, $code_limit>(
                    panel, packed, tokens, out, block,
                )
            }
        }
    };
}

pub(crate) use {
    float_wrappers, packed_wrappers, sweep_wrapper, target_feature_fn, vector_wrappers,
};
