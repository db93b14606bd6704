// Picks the build of the kernels that this processor runs.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace brctc {

namespace baseline {
extern const Kernels table;
}
#ifdef BRCTC_X86
namespace x86_64_v3 {
extern const Kernels table;
}
namespace x86_64_v4 {
extern const Kernels table;
}
#endif

namespace {

struct Choice {
  const char* name;
  const Kernels* table;
};

Choice choose() {
  // BRCTC_ISA=baseline (or another name) overrides the choice, for tests and for debugging.
  const char* wanted = std::getenv("BRCTC_ISA");
  auto allowed = [&](const char* name) { return !wanted || std::strcmp(wanted, name) == 0; };
#ifdef BRCTC_X86
  // feature by feature: older compilers do not know the levels' names
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (v4 && allowed("x86_64_v4")) return {"x86_64_v4", &x86_64_v4::table};
  if (v3 && allowed("x86_64_v3")) return {"x86_64_v3", &x86_64_v3::table};
#endif
  return {"baseline", &baseline::table};
}

const Choice& chosen() {
  static const Choice choice = choose();
  return choice;
}

}  // namespace

const Kernels& kernels() { return *chosen().table; }
const char* instruction_set() { return chosen().name; }

}  // namespace brctc
