// The search of a pitch track (brctc/data/pitch.py).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <vector>

namespace nb = nanobind;

namespace brctc {
namespace {

using Costs = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using State = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Parents = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using States = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// For every i the j that minimises past[j] + factor (i - j)^2: each j is a parabola, and i looks up which of them is
// lowest there (Felzenszwalb and Huttenlocher, 2012). Linear in the number of states, where trying all pairs is square.
class Parabolas {
 public:
  explicit Parabolas(size_t states) : owner_(states), begin_(states + 1) {}

  void lowest(const double* past, double factor, size_t states, int32_t* parent) {
    size_t last = 0;
    owner_[0] = 0;
    begin_[0] = -1;
    for (size_t j = 1; j < states; ++j) {
      double meet = crossing(past, factor, owner_[last], j);
      while (last > 0 && meet <= begin_[last]) meet = crossing(past, factor, owner_[--last], j);
      if (meet >= static_cast<double>(states)) continue;  // it is lowest behind the last state only
      owner_[++last] = static_cast<int32_t>(j);
      begin_[last] = meet;
    }
    for (size_t i = 0, part = 0; i < states; ++i) {
      while (part < last && begin_[part + 1] <= static_cast<double>(i)) ++part;
      parent[i] = owner_[part];
    }
  }

 private:
  std::vector<int32_t> owner_;  // of the parts of the lower envelope, from left to right
  std::vector<double> begin_;

  // Where the parabola of k falls below that of j < k.
  static double crossing(const double* past, double factor, int32_t j, size_t k) {
    const double a = j, b = static_cast<double>(k);
    return ((past[k] + factor * b * b) - (past[j] + factor * a * a)) / (2 * factor * (b - a));
  }
};

// cost_t[i] = local_t[i] + min_j (cost_{t-1}[j] + factor (i - j)^2), with the least of each t taken off. parents[t, i] is
// that j, best[t] the i that costs least. `cost` goes from call to call.
void track_pitch(Costs local, State cost, double factor, Parents parents, States best) {
  const size_t frames = local.shape(0), states = local.shape(1);
  if (cost.shape(0) != states || parents.shape(0) != frames || parents.shape(1) != states || states == 0 ||
      best.shape(0) != frames)
    throw nb::value_error("local (T, S), cost (S), parents (T, S) and best (T) do not fit");
  if (!(factor > 0)) throw nb::value_error("the factor of a jump must be positive");
  const nb::gil_scoped_release free;
  Parabolas parabolas(states);
  std::vector<double> next(states);
  for (size_t t = 0; t < frames; ++t) {
    int32_t* parent = parents.data() + t * states;
    parabolas.lowest(cost.data(), factor, states, parent);
    size_t least = 0;
    for (size_t i = 0; i < states; ++i) {
      const double jump = static_cast<double>(i) - parent[i];
      next[i] = local.data()[t * states + i] + cost.data()[parent[i]] + factor * jump * jump;
      if (next[i] < next[least]) least = i;
    }
    for (size_t i = 0; i < states; ++i) cost.data()[i] = next[i] - next[least];
    best.data()[t] = static_cast<int32_t>(least);
  }
}

}  // namespace

void bind_pitch(nb::module_& m) {
  m.def("track_pitch", &track_pitch, nb::arg("local"), nb::arg("cost"), nb::arg("factor"), nb::arg("parents"),
        nb::arg("best"));
}

}  // namespace brctc
