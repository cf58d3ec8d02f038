// The most operations that a machine's vector units do: each thread runs one instruction on registers alone, with more
// sums at a time than the instruction's latency needs.
#include <c10/util/Exception.h>

#include <dutyfree/op.h>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// Adds its sums up into *sink, so that the compiler keeps them; returns the operations of `rounds`.
using Probe = std::int64_t (*)(std::int64_t rounds, float* sink);

#if defined(__x86_64__)

constexpr int kSums = 12;

__attribute__((target("avx512f"))) std::int64_t fma_512(std::int64_t rounds, float* sink) {
  __m512 sums[kSums];
  for (__m512& sum : sums) {
    sum = _mm512_setzero_ps();
  }
  const __m512 a = _mm512_set1_ps(*sink);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(a, a, sum);
    }
  }
  for (const __m512& sum : sums) {
    *sink += _mm512_cvtss_f32(sum);
  }
  return rounds * kSums * 16 * 2;
}

__attribute__((target("avx2,fma"))) std::int64_t fma_256(std::int64_t rounds, float* sink) {
  __m256 sums[kSums];
  for (__m256& sum : sums) {
    sum = _mm256_setzero_ps();
  }
  const __m256 a = _mm256_set1_ps(*sink);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(a, a, sum);
    }
  }
  for (const __m256& sum : sums) {
    *sink += _mm256_cvtss_f32(sum);
  }
  return rounds * kSums * 8 * 2;
}

__attribute__((target("avx512f,avx512bf16"))) std::int64_t vdpbf16ps(std::int64_t rounds, float* sink) {
  __m512 sums[kSums];
  for (__m512& sum : sums) {
    sum = _mm512_setzero_ps();
  }
  const __m512 wide = _mm512_set1_ps(*sink);
  const __m512bh a = _mm512_cvtne2ps_pbh(wide, wide);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, a, a);
    }
  }
  for (const __m512& sum : sums) {
    *sink += _mm512_cvtss_f32(sum);
  }
  return rounds * kSums * 32 * 2;
}

__attribute__((target("avx512f,avx512vnni"))) std::int64_t vpdpbusd(std::int64_t rounds, float* sink) {
  __m512i sums[kSums];
  for (__m512i& sum : sums) {
    sum = _mm512_setzero_si512();
  }
  const __m512i a = _mm512_set1_epi32(static_cast<int>(*sink));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (__m512i& sum : sums) {
      sum = _mm512_dpbusd_epi32(sum, a, a);
    }
  }
  for (const __m512i& sum : sums) {
    *sink += static_cast<float>(_mm512_cvtsi512_si32(sum));
  }
  return rounds * kSums * 64 * 2;
}

#endif

// Null where this machine lacks the instruction.
Probe probe_of(std::string_view instruction) {
#if defined(__x86_64__)
  if (instruction == "fma") {
    if (__builtin_cpu_supports("avx512f")) {
      return &fma_512;
    }
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &fma_256 : nullptr;
  }
  if (instruction == "vdpbf16ps" && __builtin_cpu_supports("avx512bf16")) {
    return &vdpbf16ps;
  }
  if (instruction == "vpdpbusd" && __builtin_cpu_supports("avx512vnni")) {
    return &vpdpbusd;
  }
#endif
  return nullptr;
}

std::int64_t run(const at::Tensor& sinks, std::string_view instruction, std::int64_t rounds) {
  const Probe probe = probe_of(instruction);
  if (probe == nullptr) {
    return 0;
  }
  std::vector<std::thread> threads;
  std::vector<std::int64_t> operations(static_cast<std::size_t>(sinks.numel()));
  for (std::size_t i = 0; i < operations.size(); ++i) {
    float* sink = sinks.mutable_data_ptr<float>() + i;
    threads.emplace_back([&operations, i, probe, rounds, sink] {
      float own = *sink;
      operations[i] = probe(rounds, &own);
      *sink = own == 1.0F ? own : 0.0F;
    });
  }
  std::int64_t all = 0;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    threads[i].join();
    all += operations[i];
  }
  return all;
}

}  // namespace

DUTYFREE_LIBRARY(dutyfree_bench_peaks, m) {
  // One thread for each of `sinks`, float32, which are written to. Returns the operations that all of them did, 0 where
  // the machine lacks the instruction: "fma", "vdpbf16ps" or "vpdpbusd".
  m.def("run(Tensor(a!) sinks, str instruction, int rounds) -> int").impl<&run>(at::kCPU);
}
