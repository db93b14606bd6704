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
  __builtin_cpu_init();
  if (allowed("x86_64_v4") && __builtin_cpu_supports("x86-64-v4")) return {"x86_64_v4", &x86_64_v4::table};
  if (allowed("x86_64_v3") && __builtin_cpu_supports("x86-64-v3")) return {"x86_64_v3", &x86_64_v3::table};
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
