#include "contract.hpp"

#include <fstream>

#include <nlohmann/json.hpp>

#include "image.hpp"

Contract read_contract(const std::string &path) try {
  std::ifstream file(path);
  if (!file) throw Refused(path + " cannot be opened");
  const auto document = nlohmann::json::parse(file);
  const auto &size = document.at("input"), &preprocessing = document.at("preprocessing");
  if (document.value("compile", "") == "aoti") {
    throw Refused(path + " is of an AOTInductor package; this program runs TorchScript: take another variant");
  }
  const std::string method = preprocessing.at("fit"), resample = preprocessing.at("resample");
  if (method != "crop" || resample != "bilinear") {
    throw Refused(path + " asks for fit " + method + " and resample " + resample + "; known are crop and bilinear");
  }
  Contract contract{document.at("classes"), size.at("channels"), size.at("height"), size.at("width"), {}};
  if (const auto limits = document.find("images"); limits != document.end()) {  // older contracts have none
    contract.limits = {limits->at("max_pixels"), limits->at("formats")};
  }
  if ((contract.channels != 1 && contract.channels != 3) || contract.height < 1 || contract.width < 1) {
    throw Refused(path + " asks for images of a size that there is not");
  }
  return contract;
} catch (const nlohmann::json::exception &error) {
  throw Refused(path + " is no contract: " + error.what());
}
