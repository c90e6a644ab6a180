//! Loops that pay for wider vectors: the same safe code, compiled for the processor that is there.
//!
//! A kernel is inlined into one function for each kind of processor, so that both do the same by construction; a
//! test runs both all the same. All that is unsafe about it is the call of the one for newer processors.

/// What a processor can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cpu {
    /// What every processor of the architecture can.
    Portable,
    /// AVX2, BMI1 and BMI2.
    #[cfg(target_arch = "x86_64")]
    Avx2(Proof),
}

/// Only [`Cpu::detect`] makes one: the processor was asked.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof(());

/// Work to be compiled for each kind of processor. Implementations are `#[inline(always)]`, and so is what they call
/// in their loops.
pub(super) trait Kernel {
    /// What comes of it.
    type Out;
    /// Does it.
    fn run(self) -> Self::Out;
}

impl Cpu {
    /// This machine's.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
            return Self::Avx2(Proof(()));
        }
        Self::Portable
    }

    /// Runs a kernel as this processor does it best.
    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self {
            Self::Portable => kernel.run(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a proof exists only where the processor was asked for exactly these features.
            Self::Avx2(Proof(())) => unsafe { avx2(kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn avx2<K: Kernel>(kernel: K) -> K::Out {
    kernel.run()
}
