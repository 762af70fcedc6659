#include "mp_server/descriptor_budget.h"

#include <sys/resource.h>

#include <algorithm>

#include "common/check.h"

namespace ems::server {
namespace {

constexpr uint64_t kConnectionsLeast = 8;

}  // namespace

uint64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;  // what systems begin with
  rlimit raised = limit;
  raised.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

DescriptorBudget PlanDescriptors(uint64_t limit, uint64_t own, uint32_t connections,
                                 uint32_t sessions) {
  DescriptorBudget budget{.limit = limit, .own = own};
  budget.wanted = own + connections + sessions * kDescriptorsPerSession;
  const uint64_t left = limit > own ? limit - own : 0;
  const uint64_t fits = budget.wanted <= limit ? connections : left / 2;
  budget.connections_max =
      static_cast<uint32_t>(std::min<uint64_t>(connections, std::max(fits, kConnectionsLeast)));
  EMS_CHECK(budget.connections_max <= connections, "{} connections", budget.connections_max);
  return budget;
}

}  // namespace ems::server
