// classify MODEL.pt contract.json IMAGE...: the probabilities of each class, a line of JSON an image, without Python.

#include <algorithm>
#include <cmath>
#include <iostream>

#include <nlohmann/json.hpp>
#include <torch/script.h>

#include "contract.hpp"
#include "decode.hpp"
#include "fit.hpp"

namespace {

// torch deprecates its quantization in every process; who runs this program cannot mend that.
class Warnings : public c10::WarningHandler {
  void process(const c10::Warning &warning) override {
    if (warning.msg().find("deprecated") == std::string::npos) std::cerr << "warning: " << warning.msg() << '\n';
  }
};

// Return uint8 [1, C, H, W].
torch::Tensor as_batch(const Image &image) {
  const auto interleaved = torch::from_blob(const_cast<std::uint8_t *>(image.samples.data()),
                                            {1, image.height, image.width, image.channels}, torch::kUInt8);
  return interleaved.permute({0, 3, 1, 2}).contiguous();
}

// Return the line of the cause: torch's messages begin or go on with tracebacks.
std::string cause(const std::exception &error) {
  const std::string message = error.what();
  const auto named = message.rfind("Error: ");
  const auto start = named == std::string::npos ? message.find_first_not_of('\n') : message.rfind('\n', named) + 1;
  return message.substr(start, message.find('\n', start) - start);
}

torch::jit::Module load(const std::string &path) try {
  auto graph = torch::jit::load(path, torch::kCPU);
  graph.eval();
  return graph;
} catch (const std::exception &error) {
  throw Refused(path + " is no TorchScript file that can be read: " + cause(error));
}

nlohmann::ordered_json classify(torch::jit::Module &graph, const Contract &contract, const std::string &file) {
  const auto image = fit(with_channels(decode(file, contract.limits), contract.channels), contract.width, contract.height);
  const c10::InferenceMode guard;
  const auto answer = graph.forward({as_batch(image)}).toTensor().to(torch::kFloat32).contiguous();
  if (answer.numel() != static_cast<std::int64_t>(contract.classes.size())) {
    throw Refused("the model answers " + std::to_string(answer.numel()) + " classes, its contract names " +
                  std::to_string(contract.classes.size()));
  }
  const std::vector<float> probabilities(answer.data_ptr<float>(), answer.data_ptr<float>() + answer.numel());
  for (const float value : probabilities) {
    if (!std::isfinite(value)) throw Refused(file + " makes the model answer what is not a finite number");
  }
  const auto best = std::max_element(probabilities.begin(), probabilities.end()) - probabilities.begin();
  return {{"image", file},
          {"label", contract.classes[best]},
          {"probability", probabilities[best]},
          {"classes", contract.classes},
          {"probabilities", probabilities}};
}

}  // namespace

int main(int num_arguments, char **arguments) {
  if (num_arguments < 4) {
    std::cerr << "usage: classify MODEL.pt contract.json IMAGE...\n";
    return 2;
  }
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard quiet(&warnings);
  int status = 0;
  try {
    const auto contract = read_contract(arguments[2]);
    auto graph = load(arguments[1]);
    for (int index = 3; index < num_arguments; ++index) {
      try {
        const auto answer = classify(graph, contract, arguments[index]);
        // A file's name need not be UTF-8, as JSON must.
        std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
      } catch (const Refused &refused) {  // a bad image fails alone
        std::cerr << "error: " << refused.what() << '\n';
        status = 2;
      } catch (const std::exception &error) {
        std::cerr << "error: " << arguments[index] << " cannot be answered: " << cause(error) << '\n';
        status = 2;
      }
    }
  } catch (const std::exception &error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  }
  return status;
}
