#include "bench/local_result.h"

#include <algorithm>

#include "bench/store_bench.h"

namespace ems::bench {
namespace {

template <typename T>
void AddOnce(const T& value, std::vector<T>* all) {
  if (std::find(all->begin(), all->end(), value) == all->end()) all->push_back(value);
}

}  // namespace

std::vector<double> LaneResult::All(Figure figure) const {
  std::vector<double> values;
  for (const RoundFigures& round : rounds) values.push_back(figure(round));
  return values;
}

double LaneResult::MedianOf(Figure figure) const { return Median(All(figure)); }

const LaneResult* LocalResults::Find(const std::string& contender, LocalOp op, uint64_t value_bytes,
                                     uint32_t threads) const {
  const auto found = std::find_if(lanes.begin(), lanes.end(), [&](const LaneResult& lane) {
    return lane.contender == contender && lane.op == op && lane.value_bytes == value_bytes &&
           lane.threads == threads;
  });
  return found == lanes.end() ? nullptr : &*found;
}

std::vector<uint64_t> LocalResults::Sizes() const {
  std::vector<uint64_t> sizes;
  for (const LaneResult& lane : lanes) AddOnce(lane.value_bytes, &sizes);
  return sizes;
}

std::vector<std::string> LocalResults::Contenders() const {
  std::vector<std::string> names;
  for (const LaneResult& lane : lanes) AddOnce(lane.contender, &names);
  return names;
}

}  // namespace ems::bench
