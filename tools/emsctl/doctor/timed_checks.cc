#include "tools/emsctl/doctor/timed_checks.h"

#include <fmt/format.h>

#include <chrono>
#include <future>
#include <memory>

namespace ems::emsctl {

void TimedChecks::AddAll(Findings findings) {
  for (Finding& one : findings) findings_.push_back(std::move(one));
}

void TimedChecks::Run(const std::string& name, std::function<Finding()> check) {
  const auto promise = std::make_shared<std::promise<Finding>>();
  std::future<Finding> found = promise->get_future();
  threads_.emplace_back("doctor",
                        [promise, check = std::move(check)] { promise->set_value(check()); });
  if (found.wait_for(timeout_) == std::future_status::ready) {
    threads_.pop_back();
    return Add(found.get());
  }
  stuck_ = true;
  Add({.level = Level::kFail,
       .check = name,
       .found =
           fmt::format("no answer in {:.1f} s", std::chrono::duration<double>(timeout_).count()),
       .mend = "does its disk or file system hang? dmesg says more"});
}

}  // namespace ems::emsctl
