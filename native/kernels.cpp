// Compiled once per instruction set, with BRCTC_ISA naming it: everything in the headers lives in
// an inline namespace of that name, so that no build borrows another's instructions.
#include "criterion.h"
#include "best_path.h"
#include "custom_risk.h"

namespace brctc {
inline namespace BRCTC_ISA {

extern const Kernels table;
const Kernels table = {
    {run_loss<float>, run_loss<double>},
    {run_groups<float>, run_groups<double>},
    {run_groups_backward<float>, run_groups_backward<double>},
    {run_weigh<float>, run_weigh<double>},
    {run_peaks<float>, run_peaks<double>},
    {run_best_path<float>, run_best_path<double>},
};

}  // namespace BRCTC_ISA
}  // namespace brctc
