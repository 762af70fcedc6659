#include "bench/sides/side_result.h"

#include <algorithm>

#include "bench/harness/figures.h"

namespace ems::bench {
namespace {

template <typename T>
void AddOnce(const T& value, std::vector<T>* all) {
  if (std::find(all->begin(), all->end(), value) == all->end()) all->push_back(value);
}

}  // namespace

std::vector<double> TrialResult::All(Figure figure) const {
  std::vector<double> values;
  for (const RoundFigures& round : rounds) values.push_back(figure(round));
  return values;
}

double TrialResult::MedianOf(Figure figure) const { return Median(All(figure)); }

const TrialResult* SideResults::Find(const std::string& subject, SideOp op, uint64_t value_bytes,
                                     uint32_t threads) const {
  const auto found = std::find_if(trials.begin(), trials.end(), [&](const TrialResult& trial) {
    return trial.subject == subject && trial.op == op && trial.value_bytes == value_bytes &&
           trial.threads == threads;
  });
  return found == trials.end() ? nullptr : &*found;
}

std::vector<uint64_t> SideResults::Sizes() const {
  std::vector<uint64_t> sizes;
  for (const TrialResult& trial : trials) AddOnce(trial.value_bytes, &sizes);
  return sizes;
}

std::vector<std::string> SideResults::Subjects() const {
  std::vector<std::string> names;
  for (const TrialResult& trial : trials) AddOnce(trial.subject, &names);
  return names;
}

}  // namespace ems::bench
