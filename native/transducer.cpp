// Compiled once per instruction set, as kernels.cpp is.
#include "transducer.h"

#include "joint.h"
#include "transducer_lattice.h"
#include "transducer_rows.h"

namespace brctc {
inline namespace BRCTC_ISA {

extern const TransducerKernels transducer_table;
const TransducerKernels transducer_table = {
    {read_frame<float>, read_frame<double>},
    {run_transducer<float>, run_transducer<double>},
    {gradient_frame<float>, gradient_frame<double>},
    {join<float>, join<double>},
    {join_backward<float>, join_backward<double>},
};

}  // namespace BRCTC_ISA
}  // namespace brctc
