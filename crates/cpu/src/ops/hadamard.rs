//! Hadamard rotation of keys and values that are cached in few bits (q8_0, q4_0).
//!
//! Keys have a few coordinates that are much larger than the others and cost the precision of all
//! values of their block. An orthonormal Walsh-Hadamard transform spreads them over 64 coordinates.
//! Queries are rotated too, which leaves scores unchanged. Weighted values are rotated back, since
//! the transform is its own inverse.

/// Size of the transform. A larger one, such as 256 for heads of 256, made results worse.
const SIZE: usize = 64;

/// Rotates each group of [`SIZE`] coordinates.
pub fn rotate(x: &mut [f32]) {
    for x in x.as_chunks_mut::<SIZE>().0 {
        let mut half = 1;
        while half < SIZE {
            for pair in x.chunks_exact_mut(2 * half) {
                let (a, b) = pair.split_at_mut(half);
                for (a, b) in a.iter_mut().zip(b) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        // 1 / √64.
        x.iter_mut().for_each(|x| *x *= 0.125);
    }
}

/// Whether heads of `dim` values are rotated if they are stored in blocks of `block` values.
pub fn is_rotated(dim: usize, block: usize) -> bool {
    block > 1 && dim.is_multiple_of(SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rotation_preserves_dot_products_and_is_its_own_inverse() {
        let value = |i: usize| ((i * 7919) % 1009) as f32 / 500.0 - 1.0;
        let (x, y): (Vec<f32>, Vec<f32>) = (0..128).map(|i| (value(i), value(i + 500))).unzip();
        let dot =
            |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(x * y)).sum::<f64>();
        let (mut a, mut b) = (x.clone(), y.clone());
        rotate(&mut a);
        rotate(&mut b);
        assert!(a != x && (dot(&a, &b) - dot(&x, &y)).abs() < 1e-4);
        rotate(&mut a);
        assert!(a.iter().zip(&x).all(|(a, x)| (a - x).abs() < 1e-6));
        let mut one = [0.0; 64];
        one[5] = 8.0;
        rotate(&mut one);
        assert!(one.iter().all(|x| x.abs() == 1.0), "one large coordinate becomes 64 equal ones");
    }
}
